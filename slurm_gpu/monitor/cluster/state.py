"""One state of the cluster, ready to be told: made once for each look, and never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.flags import Attention, PlacedAlert
from slurm_gpu.monitor.cluster.frames import Owner, job_frames, live_frames, own_squares, state_frame
from slurm_gpu.monitor.cluster.holding import Holding, find_holding
from slurm_gpu.monitor.cluster.jobs import JobListing
from slurm_gpu.monitor.cluster.layout import SquareLayout, layout_key, make_layout
from slurm_gpu.monitor.cluster.metrics import STATE
from slurm_gpu.monitor.http.response_cache import Shelf


@dataclass(frozen=True, slots=True)
class PageState:
    """All that pages are answered with but for single jobs."""

    version: int
    seen: DatabaseState
    layout: SquareLayout
    layout_key: object = field(repr=False)
    holding: Holding
    frames: Mapping[str, bytes]
    """By metric, one octet a square, with nothing left out."""
    own: Mapping[Owner, Sequence[int]]
    """By user the squares that only they hold."""
    jobs: JobListing
    flags: Sequence[PlacedAlert] = ()
    answers: Shelf = field(default_factory=Shelf, repr=False)
    """Made already for this state."""

    def as_of_s(self, metric: str | None = None) -> float:
        """When a frame, or without a metric the whole, was true."""
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
    """The state of what was seen; what did not change is taken over from the one before.

    `attention` has looked at it already.
    """
    nodes = seen.cluster.nodes
    key = layout_key(nodes, seen.reports, racks)
    if before is not None and before.layout_key == key:
        layout, key = before.layout, before.layout_key
    else:
        layout = make_layout(cluster, nodes, seen.reports, racks)
    holding = find_holding(nodes, seen.live, layout)
    table = JobListing.empty(version) if before is None else before.jobs
    if before is not None and before.layout.id != layout.id:
        # Squares have other numbers now: nothing that was told of them holds any more.
        table = JobListing.empty(version)
    return PageState(
        version=version,
        seen=seen,
        layout=layout,
        layout_key=key,
        holding=holding,
        frames={
            **live_frames(layout, seen.live),
            **job_frames(layout, holding, seen.uses()),
            STATE.name: state_frame(layout, nodes, seen.live, holding),
        },
        own=own_squares(holding, {job.job_id: (job.user, job.uid) for job in seen.cluster.jobs}),
        jobs=table.next(version, seen.cluster.jobs, holding),
        flags=attention.flags(seen.live_s, seen, layout),
    )
