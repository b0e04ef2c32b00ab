"""Processes that NVML shows on a GPU, against the jobs that hold it.

A process is where it should be if it is of a job that holds the GPU. Else it is

- an `intruder`, if it is of another job that is known here, or of none;
- a `job_mismatch`, if it is in the cgroup of a job of which nothing is known here: then our own books, or the
  order of positions, may be wrong.

Of no job and yet no intruder are the processes of system accounts (uid below 1000: root's monitoring, the
display's, nvidia-persistenced's), MPS's daemon and server, told by their executable, which must be root's,
and those of the holder's own user: containers that a daemon started for the job look like that.
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
# What begins and ends is seen by NVML, by hooks and by us in any order: only what stays is told.
CONFIRM_S = 5.0
# A process may outlive its job's epilog by so much.
LEAVE_S = 60.0
# So many events of one job (or of one user's processes without a job) and of all together in an hour.
PER_HOUR = 10
ALL_PER_HOUR = 100
_HOUR_S = 3600.0
_MAX_REPORTED = 10_000

Suspect = tuple[int, bytes, str]
"""A process on a device: its id, its start, the device's UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJobs:
    """What is known of jobs: `owners` of the open ones, `without_gpus` those that run here and hold none.

    `ended_s` tells when a job ended that has ended of late.
    """

    owners: Mapping[int, JobOwner]
    without_gpus: Collection[int]
    ended_s: Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class ProcessFinding:
    """What is wrong with a process, and who is to answer for it: a job, or a user without one."""

    kind: str
    culprit: str
    data: Mapping[str, Any]


class Crosscheck:
    """Checks the processes of devices as they are seen, and tells of each that is wrong once."""

    def __init__(self, processes: ProcessJobs, events: EventRecorder) -> None:
        self._processes, self._events = processes, events
        self._checked_s: dict[str, float] = {}
        self._suspects: dict[str, dict[Suspect, float]] = {}
        self._told: dict[Suspect, None] = {}
        self._limit = _HourlyLimit()

    def is_due(self, device: str, now_s: float) -> bool:
        """Is it time to check the device's processes?"""
        return now_s >= self._checked_s.get(device, -CHECK_S) + CHECK_S

    def check(
        self, device: str, pids: Iterable[int], allocated: Sequence[int], known: KnownJobs, now_s: float
    ) -> None:
        """Look at what NVML shows on a device that `allocated` hold, if any."""
        self._checked_s[device] = now_s
        before, self._suspects[device] = self._suspects.get(device, {}), {}
        for pid in pids:
            origin = self._processes.origin(pid)
            finding = None if origin is None else self._judge(pid, origin, allocated, known, now_s)
            if origin is None or finding is None:
                continue
            if not allocated and finding.data.get("job") is None:
                continue  # nobody's time is taken, and no job takes what it has not
            suspect = (pid, origin.started, device)
            since_s = self._suspects[device][suspect] = before.get(suspect, now_s)
            if now_s - since_s >= CONFIRM_S and suspect not in self._told:
                self._tell(suspect, finding, allocated, now_s)
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
            return None  # it may be the holder's: of a job that Slurm alone told of the SLUID is unknown
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

    def _tell(
        self, suspect: Suspect, finding: ProcessFinding, allocated: Sequence[int], now_s: float
    ) -> None:
        self._told[suspect] = None
        if len(self._told) > _MAX_REPORTED:
            del self._told[next(iter(self._told))]
        if self._limit.allows(finding.culprit, now_s):
            device, job_id = suspect[2], min(allocated, default=None)
            log.warning("%s on %s, which job %s holds: %s", finding.kind, device, job_id, finding.data)
            self._events.record(finding.kind, device=device, job_id=job_id, data=finding.data)


def _intruder(pid: int, origin: ProcessOrigin, job: int | None) -> ProcessFinding:
    culprit = f"uid {origin.uid}" if job is None else f"job {job}"
    return ProcessFinding("intruder", culprit, {"pid": pid, "uid": origin.uid, "job": job})


class _HourlyLimit:
    """Lets so many through for each culprit and hour, and counts the others."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._let: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def allows(self, culprit: str, now_s: float) -> bool:
        """May one more be told of that culprit?"""
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
        """At the end of the hour: how many were left out, by culprit."""
        if now_s - self._since_s < _HOUR_S:
            return []
        left_out = list(self._left_out.items())
        self._let, self._left_out = {}, {}
        return left_out
