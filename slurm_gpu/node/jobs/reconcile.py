"""What Slurm says of this node's jobs, through slurm-gpudbd, against what the hooks told.

Hooks are first hand; this mends what they could not tell: jobs older than slurm-gpud, and epilogs that never
ran. An answer may be older than the newest hook, so nothing is believed that a hook has just overtaken, and
no job that was not told of twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.node.allocation.tracker import Allocation, Allocations, EndedAllocation, new_segment
from slurm_gpu.node.jobs.ended_runs import EndedRuns
from slurm_gpu.node.jobs.requeued import RequeuedJobs
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.shipping.shipment import JobFacts

# What is told again of a moment so much later was no passing state.
TWICE_AFTER_S = 8.0
# An answer is so long on its way at most, if it is not about to be asked for again.
_ON_ITS_WAY_S = 1.0
# An epilog may take so long to come after the end that Slurm tells.
EPILOG_LATE_S = 30.0
# That Slurm tells of a job which nobody knows here, and never will, is believed for so long.
_UNKNOWN_JOBS_S = 30.0
# Clocks of nodes and controller differ by less.
_CLOCKS_DIFFER_S = 60.0
_HOLDING = frozenset({"RUNNING", "SUSPENDED"})
_OF_GPUS = ("gpu", "shard", "mps")
_MOST_POSITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    """A job that held GPUs of this node `age_s` ago, says Slurm; `start_s` is the controller's wall clock."""

    job_id: int
    restart: int
    start_s: int
    uid: int | None
    positions: tuple[int, ...]
    suspended: bool
    age_s: float

    @classmethod
    def from_facts(cls, job_id: int, facts: Mapping[str, Any]) -> ReportedJob | None:
        """From an entry of `jobs` (docs/api.md); None for a job that holds no GPU now, or if told in part.

        While its prolog runs, the hook will tell better when the job began.
        """
        restart, start_s, uid = (_whole(facts.get(name)) for name in ("restart", "start_s", "uid"))
        positions = _positions(facts.get("gpu_index"))
        state = facts.get("state")
        if not isinstance(state, str) or state not in _HOLDING or facts.get("in_prolog") is True:
            return None
        age_s = _moment(facts.get("age_s"))
        if restart is None or start_s is None or age_s is None or not positions:
            return None
        return cls(
            job_id=job_id,
            restart=restart,
            start_s=start_s,
            uid=uid,
            positions=positions,
            suspended=state == "SUSPENDED",
            age_s=age_s,
        )

    def allocation(
        self, cluster: str, node: str, boot_id: str, now_s: float, wall_s: float, since_s: float | None = None
    ) -> Allocation:
        """The hold that is recorded from now on, or from when it was seen to begin (`since_s`)."""
        start_s = now_s if since_s is None else since_s
        return Allocation(
            key=SegmentKey(
                cluster=cluster,
                job_id=self.job_id,
                restart=self.restart,
                prolog_s=self.start_s,
                node=node,
                boot_id=boot_id,
                segment=new_segment(),
            ),
            prolog_at_s=self.start_s,
            begun_s=now_s - max(0.0, wall_s - self.start_s) if since_s is None else since_s,
            start_s=start_s,
            start_wall_s=wall_s - (now_s - start_s),
            positions=self.positions,
            uid=self.uid,
            is_reported=True,
        )


class UnknownJobs:
    """Whether jobs may hold GPUs here of which nothing is known yet.

    So it is with a lost spool, until Slurm has told; and after the epilog of a requeued job, which may come
    back without a prolog, until it is known to be here, or does not come for long.
    """

    def __init__(self, returning: RequeuedJobs) -> None:
        self._returning = returning
        self._anyone = False
        self._first_report_s: float | None = None

    @property
    def are_possible(self) -> bool:
        """May there be any just now?"""
        return self._anyone or bool(self._returning)

    def may_run_with(self, job_id: int) -> bool:
        """Return whether any but that job may run here now."""
        return self._anyone or self._returning.may_run_with(job_id)

    def lost_spool(self) -> None:
        """Anyone may hold anything."""
        self._anyone = True

    def update_jobs(self, told: Iterable[ReportedJob], allocations: Allocations, now_s: float) -> None:
        """Take in an answer; it takes two, since what is told is believed of two moments only."""
        if self._first_report_s is None:
            self._first_report_s = now_s
        ago_s = now_s - self._first_report_s
        all_known = all(allocations.of_job(job.job_id) is not None for job in told)
        if ago_s >= _UNKNOWN_JOBS_S or (all_known and ago_s >= TWICE_AFTER_S):
            self._anyone = False


class Reconciliation:
    """Remembers what was told, until it is told again. `since_s`: when this slurm-gpud began to see hooks.

    A job that `is_seen` here needs not be told of twice.
    """

    def __init__(
        self, ended: EndedRuns, since_s: float, is_seen: Callable[[int], bool] = lambda job_id: False
    ) -> None:
        self._ended, self._since_s, self._is_seen = ended, since_s, is_seen
        self._first_reported_s: dict[tuple[int, int], float] = {}

    def begun(
        self, told: Iterable[ReportedJob], allocations: Allocations, now_s: float, wall_s: float
    ) -> list[ReportedJob]:
        """Of all that run here, those of which no hook told. `now_s` is Clock.monotonic(), since boot."""
        found: list[ReportedJob] = []
        reported_at_s: dict[tuple[int, int], float] = {}
        booted_s = wall_s - now_s
        for job in told:
            run = job.job_id, job.restart
            here = allocations.of_job(job.job_id)
            known = here is not None and here.key.restart >= job.restart
            # Slurm needs minutes to notice that a node went down with its jobs.
            before_boot = job.start_s < booted_s - _CLOCKS_DIFFER_S
            as_of_s = now_s - job.age_s - _ON_ITS_WAY_S
            # Of what was so before we came, an epilog may have been taken in by the slurm-gpud before us.
            if known or before_boot or as_of_s < self._since_s or self._ended.covers(*run, as_of_s):
                continue
            reported_at_s[run] = self._first_reported_s.get(run, as_of_s)
            if self._is_seen(job.job_id) or as_of_s - reported_at_s[run] >= TWICE_AFTER_S:
                found.append(job)
        self._first_reported_s = reported_at_s
        return found

    def over(
        self, told: JobFacts, allocations: Allocations, now_s: float, wall_s: float
    ) -> list[EndedAllocation]:
        """Of the answer's `ended`, what is open here though its epilog should have come by now."""
        found: list[EndedAllocation] = []
        for job_id, facts in told.items():
            allocation = allocations.of_job(job_id)
            restart, ended_at_s = _whole(facts.get("restart")), _moment(facts.get("end_s"))
            if allocation is None or ended_at_s is None:
                continue
            younger = restart is not None and allocation.key.restart > restart
            ago_s = wall_s - ended_at_s
            # Without a restart count, that of an earlier run, or of an earlier job with this number.
            earlier = ago_s > now_s - allocation.begun_s + _CLOCKS_DIFFER_S
            if not younger and not earlier and ago_s >= EPILOG_LATE_S:
                end_s = min(now_s, max(allocation.begun_s, now_s - ago_s))
                found.append(EndedAllocation(allocation, end_s))
        return found


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        return None
    return value


def _moment(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 2**53 and math.isfinite(value) else None


def _positions(index: Any) -> tuple[int, ...]:
    """All positions in {"gpu": [0, 1], "shard": [2]}, each once; () where any is not a position."""
    if not isinstance(index, dict):
        return ()
    listed = [index.get(name) for name in _OF_GPUS]
    found = [_whole(position) for part in listed if isinstance(part, list) for position in part]
    known = [position for position in found if position is not None and position < _MOST_POSITIONS]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else ()
