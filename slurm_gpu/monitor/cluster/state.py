"""The immutable state of the cluster, created once per poll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.monitor.cluster.allocation import SquareAllocation, find_allocation
from slurm_gpu.monitor.cluster.attention import Attention, PlacedAlert
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.frames import Owner, job_frames, live_frames, own_squares, state_frame
from slurm_gpu.monitor.cluster.jobs import JobListing
from slurm_gpu.monitor.cluster.layout import SquareLayout, layout_key, make_layout
from slurm_gpu.monitor.cluster.metrics import STATE
from slurm_gpu.monitor.http.response_cache import ResponseCache


@dataclass(frozen=True, slots=True)
class PageState:
    """The data of all pages except the pages of single jobs."""

    version: int
    seen: DatabaseState
    layout: SquareLayout
    layout_key: object = field(repr=False)
    allocation: SquareAllocation
    frames: Mapping[str, bytes]
    """For each metric, one octet per square, including squares that only some viewers may see."""
    own: Mapping[Owner, Sequence[int]]
    """For each user, the squares that only this user's jobs use."""
    jobs: JobListing
    alerts: Sequence[PlacedAlert] = ()
    alerts_complete_from_s: float | None = None
    """The time from which `alerts` includes all idle jobs; None before the first state."""
    answers: ResponseCache = field(default_factory=ResponseCache, repr=False)
    """The answers cached for this state."""

    def as_of_s(self, metric: str | None = None) -> float:
        """Return the time of a metric's frame or, without a metric, of the whole state."""
        if metric is None:
            return self.seen.as_of_s
        return self.seen.cluster.as_of_s if metric == STATE.name else self.seen.live_s


def make_state(
    version: int,
    cluster: str,
    seen: DatabaseState,
    racks: Mapping[str, str],
    before: PageState | None,
    attention: Attention,
) -> PageState:
    """Make a state from the data `seen`, reusing unchanged parts of the previous state.

    `attention` must already have processed `seen`.
    """
    nodes = seen.cluster.nodes
    key = layout_key(nodes, seen.reports, racks)
    if before is not None and before.layout_key == key:
        layout, key = before.layout, before.layout_key
    else:
        layout = make_layout(cluster, nodes, seen.reports, racks)
    allocation = find_allocation(seen.cluster, seen.live, layout)
    table = JobListing.empty(version) if before is None else before.jobs
    if before is not None and before.layout.id != layout.id:
        # Squares have new numbers, so rows of earlier versions are invalid.
        table = JobListing.empty(version)
    return PageState(
        version=version,
        seen=seen,
        layout=layout,
        layout_key=key,
        allocation=allocation,
        frames={
            **live_frames(layout, seen.live),
            **job_frames(layout, allocation, seen.uses()),
            STATE.name: state_frame(layout, nodes, seen.live, allocation),
        },
        own=own_squares(allocation, {job.job_id: (job.user, job.uid) for job in seen.cluster.jobs}),
        jobs=table.next(version, seen.cluster.jobs, allocation),
        alerts=attention.placed_alerts(seen.live_s, seen, layout),
        alerts_complete_from_s=attention.complete_from_s,
    )
