"""Compare the processes that NVML lists on a GPU with the jobs to which the GPU is allocated.

A process that does not belong to one of these jobs is reported as

- `intruder`, if its job is known here, or if it has no job;
- `job_mismatch`, if it is in the cgroup of an unknown job: slurm-gpud's allocations or the order of positions
  may be wrong.

Processes of system accounts (uid below 1000), such as monitoring, the display and nvidia-persistenced, are
exempt. MPS's daemon and server are exempt if root owns the executable. Processes of the job's own user are
exempt, because a daemon may have started containers for the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.node.process.cgroup import JobOwner, raw_id
from slurm_gpu.node.process.process_jobs import FIRST_USER_UID, MPS_PROGRAMS, ProcessJobs, ProcessOrigin
from slurm_gpu.node.shipping.events import EventRecorder

log = logging.getLogger(__name__)

CHECK_S = 5.0
# NVML, hooks and slurm-gpud may see a start or an end in any order, so only persistent findings are reported.
CONFIRM_S = 5.0
# A process may continue for this long after its job's epilog.
LEAVE_S = 60.0
# The maximum number of events per hour: for one job (or one user's processes without a job), and in total.
PER_HOUR = 10
ALL_PER_HOUR = 100
_HOUR_S = 3600.0
_MAX_REPORTED = 10_000

# A process on a device: its pid, its start time, and the device's UUID.
Suspect = tuple[int, bytes, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJobs:
    """Known jobs: those in `owners` have open allocations, and those in `without_gpus` run here without GPUs.

    `ended_s` returns when a job ended, or None if it did not end recently.
    """

    owners: Mapping[int, JobOwner]
    without_gpus: Collection[int]
    ended_s: Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class ProcessFinding:
    """An unexpected process; `culprit` is its job, or its user if it does not belong to a job."""

    kind: str
    culprit: str
    data: Mapping[str, Any]


class Crosscheck:
    """Checks the processes on devices and reports each unexpected process once."""

    def __init__(self, processes: ProcessJobs, events: EventRecorder) -> None:
        self._processes, self._events = processes, events
        self._checked_s: dict[str, float] = {}
        self._suspects: dict[str, dict[Suspect, float]] = {}
        self._reported: dict[Suspect, None] = {}
        self._limit = _HourlyLimit()

    def is_due(self, device: str, now_s: float) -> bool:
        """Return whether the next check of the device's processes is due."""
        return now_s >= self._checked_s.get(device, -CHECK_S) + CHECK_S

    def check(
        self, device: str, pids: Iterable[int], allocated: Sequence[int], known: KnownJobs, now_s: float
    ) -> None:
        """Check the processes that NVML lists on a device; `allocated` contains the jobs that use it."""
        self._checked_s[device] = now_s
        before, self._suspects[device] = self._suspects.get(device, {}), {}
        for pid in pids:
            origin = self._processes.origin(pid)
            finding = None if origin is None else self._judge(pid, origin, allocated, known, now_s)
            if origin is None or finding is None:
                continue
            if not allocated and finding.data.get("job") is None:
                continue  # no job is affected, and no job uses an unallocated GPU
            suspect = (pid, origin.started, device)
            since_s = self._suspects[device][suspect] = before.get(suspect, now_s)
            if now_s - since_s >= CONFIRM_S and suspect not in self._reported:
                self._report(suspect, finding, allocated, now_s)
        for culprit, left_out in self._limit.over(now_s):
            self._events.record("intruder", data={"of": culprit, "left_out": left_out})

    def _judge(
        self, pid: int, origin: ProcessOrigin, allocated: Sequence[int], known: KnownJobs, now_s: float
    ) -> ProcessFinding | None:
        if origin.cgroup is None:
            return self._judge_without_cgroup(pid, origin, allocated, known)
        job = raw_id(origin.cgroup, known.owners)
        if job in allocated:
            return None
        ended_s = None if job is None else known.ended_s(job)
        if ended_s is not None and now_s - ended_s < LEAVE_S:
            return None
        if job is not None and (ended_s is not None or job in known.owners or job in known.without_gpus):
            return _intruder(pid, origin, job)
        if job is None and any(known.owners[h].sluid is None for h in allocated if h in known.owners):
            return None  # without a hook, the job's SLUID is unknown, so the process may be its own
        name = job if job is not None else origin.cgroup.sluid
        data = {"pid": pid, "allocated": sorted(allocated), "cgroup": name}
        return ProcessFinding("job_mismatch", f"job {name}", data)

    def _judge_without_cgroup(
        self, pid: int, origin: ProcessOrigin, allocated: Sequence[int], known: KnownJobs
    ) -> ProcessFinding | None:
        job = origin.job(known.owners)
        if job is not None:
            return None if job in allocated else _intruder(pid, origin, job)
        if origin.uid < FIRST_USER_UID or origin.program in MPS_PROGRAMS:
            return None
        users = {known.owners[holder].uid for holder in allocated if holder in known.owners}
        return None if origin.uid in users else _intruder(pid, origin, None)

    def _report(
        self, suspect: Suspect, finding: ProcessFinding, allocated: Sequence[int], now_s: float
    ) -> None:
        self._reported[suspect] = None
        if len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        if self._limit.allows(finding.culprit, now_s):
            device, job_id = suspect[2], min(allocated, default=None)
            log.warning("%s on %s, allocated to job %s: %s", finding.kind, device, job_id, finding.data)
            self._events.record(finding.kind, device=device, job_id=job_id, data=finding.data)


def _intruder(pid: int, origin: ProcessOrigin, job: int | None) -> ProcessFinding:
    culprit = f"uid {origin.uid}" if job is None else f"job {job}"
    return ProcessFinding("intruder", culprit, {"pid": pid, "uid": origin.uid, "job": job})


class _HourlyLimit:
    """Limits the events per culprit and hour, and counts the suppressed events."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._let: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def allows(self, culprit: str, now_s: float) -> bool:
        """Return whether another event of that culprit may be reported."""
        if not self._let and not self._left_out:
            self._since_s = now_s
        if sum(self._let.values()) >= ALL_PER_HOUR:
            culprit = culprit if culprit in self._let else "others"
        elif self._let.get(culprit, 0) < PER_HOUR:
            self._let[culprit] = self._let.get(culprit, 0) + 1
            return True
        self._left_out[culprit] = self._left_out.get(culprit, 0) + 1
        return False

    def over(self, now_s: float) -> list[tuple[str, int]]:
        """Return the number of suppressed events of each culprit, or [] until the hour is over."""
        if now_s - self._since_s < _HOUR_S:
            return []
        left_out = list(self._left_out.items())
        self._let, self._left_out = {}, {}
        return left_out
