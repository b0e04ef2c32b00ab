"""A job's processes on a node where Slurm makes no cgroups: what their environment claims.

A process counts for the job that its environment names only if the job's own user runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence, Set
from typing import NamedTuple

from slurm_gpu.node.process.cgroup import job_in_environment
from slurm_gpu.node.process.job_cgroups import JobName
from slurm_gpu.node.process.procfs import Processes, read

log = logging.getLogger(__name__)

# A walk through /proc serves all jobs that are looked at within this time.
FRESH_S = 5.0
_ENVIRONMENT_LIMIT = 1 << 18
_MOST_PROCESSES = 65_536
# A process forked from slurmstepd has the job's environment only after its exec.
_TIMES_ASKED = 3
# A process that was another user's twice is looked at again at each so manieth walk only.
_WALKS_BETWEEN = 6


class _Claim(NamedTuple):
    started: int
    uid: int
    job_id: int | None
    asked: int


class EnvironmentJobs:
    """Process → job by environment, remembered: each is read once, or a few times if it claims none."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._claims: dict[int, _Claim] = {}
        self._uids: set[int] = set()
        self._walked_s: float | None = None
        self._strangers: dict[int, int] = {}
        self._is_too_much = False

    def pids(self, job: JobName, now_s: float) -> Sequence[int]:
        """The processes that claim to be that job's; none where its user is unknown."""
        if job.uid is None:
            return []
        if job.uid not in self._uids:
            self._uids.add(job.uid)
            self._strangers.clear()
            self._walked_s = None
        if self._walked_s is None or now_s - self._walked_s >= FRESH_S:
            self._walk()
            self._walked_s = now_s
        return [p for p, claim in self._claims.items() if claim.job_id == job.job_id and claim.uid == job.uid]

    def keep(self, uids: Set[int | None]) -> None:
        """From now on only these users' processes are of interest."""
        self._uids = {uid for uid in self._uids if uid in uids}

    def _walk(self) -> None:
        claims: dict[int, _Claim] = {}
        strangers: dict[int, int] = {}
        pids = self._processes.ids()
        if len(pids) > _MOST_PROCESSES:
            if not self._is_too_much:
                log.warning(
                    "%d processes run here, and %d are scanned: of jobs without a cgroup some are not "
                    "counted",
                    len(pids),
                    _MOST_PROCESSES,
                )
            # A process of a job that is known stays; of the others the newest come first.
            of_jobs = {pid for pid, claim in self._claims.items() if claim.job_id is not None}
            pids.sort(key=lambda pid: (pid not in of_jobs, -pid))
            del pids[_MOST_PROCESSES:]
        self._is_too_much = len(pids) == _MOST_PROCESSES
        for pid in pids:
            walks = self._strangers.get(pid, 0)
            if walks > 1 and walks % _WALKS_BETWEEN:
                strangers[pid] = walks + 1
                continue
            try:
                uid = self._processes.uid(pid)
                if uid in self._uids:
                    claims[pid] = self._claim(pid, uid)
                else:
                    strangers[pid] = walks + 1
            except OSError:
                continue  # gone, or not ours to read
        self._claims, self._strangers = claims, strangers

    def _claim(self, pid: int, uid: int) -> _Claim:
        started = self._processes.stat(pid).started
        known = self._claims.get(pid)
        if known is not None and known.started == started and known.uid == uid:
            if known.job_id is not None or known.asked >= _TIMES_ASKED:
                return known
            asked = known.asked + 1
        else:
            asked = 1
        environment = read(self._processes.path(pid, "environ"), _ENVIRONMENT_LIMIT)
        return _Claim(started, uid, job_in_environment(environment), asked)


class HostTree(EnvironmentJobs):
    """The same on a machine without Slurm: processes that NVML shows of a user, and what they started.

    `on_gpus` tells a user's processes on GPUs, in any thread.
    """

    def __init__(self, on_gpus: Callable[[int], Collection[int]]) -> None:
        super().__init__(Processes())
        self._on_gpus = on_gpus
        self._children: dict[int, list[int]] = {}
        self._listed_s: float | None = None

    def pids(self, job: JobName, now_s: float) -> Sequence[int]:
        """See EnvironmentJobs."""
        if job.uid is None:
            return []
        if self._listed_s is None or now_s - self._listed_s >= FRESH_S:
            self._list()
            self._listed_s = now_s
        found = dict.fromkeys(self._on_gpus(job.uid))
        waiting = list(found)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found[child] = None
                    waiting.append(child)
        return list(found)

    def _list(self) -> None:
        self._children = {}
        for pid in self._processes.ids():
            try:
                self._children.setdefault(self._processes.stat(pid).ppid, []).append(pid)
            except OSError:
                continue  # gone
