"""Find a job's processes by their environment variables on a node without job cgroups.

A process counts only if the job's own user runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence, Set
from typing import NamedTuple

from slurm_gpu.node.process.cgroup import job_in_environment
from slurm_gpu.node.process.job_cgroups import JobName
from slurm_gpu.node.process.procfs import Processes, read

log = logging.getLogger(__name__)

# All jobs that are sampled within this time share one scan of /proc.
FRESH_S = 5.0
_ENVIRONMENT_LIMIT = 1 << 18
_MOST_PROCESSES = 65_536
# A process forked from slurmstepd has the job's environment only after exec.
_TIMES_ASKED = 3
# A process that belonged to a user without jobs in two scans is checked only in every sixth scan.
_WALKS_BETWEEN = 6


class _Claim(NamedTuple):
    started: int
    uid: int
    job_id: int | None
    asked: int


class EnvironmentJobs:
    """Caches the jobs that are named in the environments of processes.

    Each environment is read once, or a few times if it names no job.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._claims: dict[int, _Claim] = {}
        self._uids: set[int] = set()
        self._walked_s: float | None = None
        self._others: dict[int, int] = {}
        self._is_too_much = False

    def pids(self, job: JobName, now_s: float) -> Sequence[int]:
        """Return the processes whose environment names the job, or [] if the job's user is unknown."""
        if job.uid is None:
            return []
        if job.uid not in self._uids:
            self._uids.add(job.uid)
            self._others.clear()
            self._walked_s = None
        if self._walked_s is None or now_s - self._walked_s >= FRESH_S:
            self._walk()
            self._walked_s = now_s
        return [p for p, claim in self._claims.items() if claim.job_id == job.job_id and claim.uid == job.uid]

    def keep(self, uids: Set[int | None]) -> None:
        """Limit further scans to these users."""
        self._uids = {uid for uid in self._uids if uid in uids}

    def _walk(self) -> None:
        claims: dict[int, _Claim] = {}
        strangers: dict[int, int] = {}
        pids = self._processes.ids()
        if len(pids) > _MOST_PROCESSES:
            if not self._is_too_much:
                log.warning(
                    "%d processes run here, but only %d are scanned: some processes of jobs without a cgroup "
                    "are not counted",
                    len(pids),
                    _MOST_PROCESSES,
                )
            # Keep the known processes of jobs, and then the newest processes.
            of_jobs = {pid for pid, claim in self._claims.items() if claim.job_id is not None}
            pids.sort(key=lambda pid: (pid not in of_jobs, -pid))
            del pids[_MOST_PROCESSES:]
        self._is_too_much = len(pids) == _MOST_PROCESSES
        for pid in pids:
            walks = self._others.get(pid, 0)
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
                continue  # the process has ended or cannot be read
        self._claims, self._others = claims, strangers

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
    """Finds the processes of a user on a machine without Slurm: those on GPUs, and their descendants.

    `on_gpus` returns a user's processes on GPUs; it must be thread-safe.
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
                continue  # the process has ended
