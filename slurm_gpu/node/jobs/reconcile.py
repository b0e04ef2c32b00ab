"""Reconcile Slurm's reports on this node's jobs, sent by slurm-gpudbd, with the hooks.

Hooks take precedence. Reports supply missing data: jobs that are older than slurm-gpud, and the ends of jobs
without an epilog. Because reports may be older than the newest hook, newer hooks override them, and a job is
accepted only after two reports.
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

# A second report confirms the first if its data are at least this much newer.
TWICE_AFTER_S = 8.0
# The maximum time that an answer takes to arrive.
_ON_ITS_WAY_S = 1.0
# An epilog may arrive this long after the end time that Slurm reports.
EPILOG_LATE_S = 30.0
# Unknown jobs are assumed for at most this long, even if Slurm keeps reporting an unknown job.
_UNKNOWN_JOBS_S = 30.0
# The clocks of nodes and the controller differ by less than this.
_CLOCKS_DIFFER_S = 60.0
_HOLDING = frozenset({"RUNNING", "SUSPENDED"})
_OF_GPUS = ("gpu", "shard", "mps")
_MOST_POSITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    """Slurm's report on a job with GPUs here, made `age_s` ago; `start_s` is by the controller's clock."""

    job_id: int
    restart: int
    start_s: int
    uid: int | None
    positions: tuple[int, ...]
    suspended: bool
    age_s: float

    @classmethod
    def from_facts(cls, job_id: int, facts: Mapping[str, Any]) -> ReportedJob | None:
        """Parse an entry of `jobs` (docs/api.md); return None if it is incomplete or lists no GPUs.

        Also return None while the prolog is running, because the hook reports the start more precisely.
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
        """Return the allocation to record from `since_s`, when the job was observed to start, or from now."""
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
    """Tracks whether unknown jobs may use GPUs here.

    After the loss of the spool, unknown jobs are possible until Slurm has reported its jobs. A requeued job
    may return without a prolog, so after its epilog, unknown jobs are possible until it is observed again or
    overdue.
    """

    def __init__(self, returning: RequeuedJobs) -> None:
        self._returning = returning
        self._anyone = False
        self._first_report_s: float | None = None

    @property
    def are_possible(self) -> bool:
        """Return whether unknown jobs are possible now."""
        return self._anyone or bool(self._returning)

    def may_run_with(self, job_id: int) -> bool:
        """Return whether unknown jobs, other than the given job, may be running here now."""
        return self._anyone or self._returning.may_run_with(job_id)

    def lost_spool(self) -> None:
        """Assume that an unknown job may use any GPU."""
        self._anyone = True

    def update_jobs(self, reported: Iterable[ReportedJob], allocations: Allocations, now_s: float) -> None:
        """Apply a report; unknown jobs are ruled out only after two reports."""
        if self._first_report_s is None:
            self._first_report_s = now_s
        ago_s = now_s - self._first_report_s
        all_known = all(allocations.of_job(job.job_id) is not None for job in reported)
        if ago_s >= _UNKNOWN_JOBS_S or (all_known and ago_s >= TWICE_AFTER_S):
            self._anyone = False


class Reconciliation:
    """Keeps reports until they are confirmed; `since_s` is the time when this process began to read hooks.

    A job for which `is_seen` returns true is accepted without confirmation.
    """

    def __init__(
        self, ended: EndedRuns, since_s: float, is_seen: Callable[[int], bool] = lambda job_id: False
    ) -> None:
        self._ended, self._since_s, self._is_seen = ended, since_s, is_seen
        self._first_reported_s: dict[tuple[int, int], float] = {}

    def begun(
        self, reported: Iterable[ReportedJob], allocations: Allocations, now_s: float, wall_s: float
    ) -> list[ReportedJob]:
        """Return confirmed reports on jobs without a known prolog; `now_s` is the time since boot."""
        found: list[ReportedJob] = []
        reported_at_s: dict[tuple[int, int], float] = {}
        booted_s = wall_s - now_s
        for job in reported:
            run = job.job_id, job.restart
            here = allocations.of_job(job.job_id)
            known = here is not None and here.key.restart >= job.restart
            # Slurm takes minutes to detect that a node went down with its jobs.
            before_boot = job.start_s < booted_s - _CLOCKS_DIFFER_S
            as_of_s = now_s - job.age_s - _ON_ITS_WAY_S
            # If a report is older than this process, an earlier slurm-gpud may have processed the job's
            # epilog.
            if known or before_boot or as_of_s < self._since_s or self._ended.covers(*run, as_of_s):
                continue
            reported_at_s[run] = self._first_reported_s.get(run, as_of_s)
            if self._is_seen(job.job_id) or as_of_s - reported_at_s[run] >= TWICE_AFTER_S:
                found.append(job)
        self._first_reported_s = reported_at_s
        return found

    def over(
        self, ended: JobFacts, allocations: Allocations, now_s: float, wall_s: float
    ) -> list[EndedAllocation]:
        """Return the open allocations in the report's `ended` whose epilog is overdue."""
        found: list[EndedAllocation] = []
        for job_id, facts in ended.items():
            allocation = allocations.of_job(job_id)
            restart, ended_at_s = _whole(facts.get("restart")), _moment(facts.get("end_s"))
            if allocation is None or ended_at_s is None:
                continue
            younger = restart is not None and allocation.key.restart > restart
            ago_s = wall_s - ended_at_s
            # The report may concern the end of an earlier run (without a restart count) or of an earlier job
            # with this ID.
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
    """Return the positions in a value such as {"gpu": [0, 1], "shard": [2]}, or () if one is invalid."""
    if not isinstance(index, dict):
        return ()
    listed = [index.get(name) for name in _OF_GPUS]
    found = [_whole(position) for part in listed if isinstance(part, list) for position in part]
    known = [position for position in found if position is not None and position < _MOST_POSITIONS]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else ()
