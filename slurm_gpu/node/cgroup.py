"""Which job a process belongs to, read from its cgroup; the only place that knows how Slurm names those.

cgroup v1   /slurm_n1/uid_1001/job_4/step_batch        (also /slurm/… on a node with one slurmd)
cgroup v2   /system.slice/slurmstepd.scope/job_4/step_0/user/task_0
Slurm 26.05 names the job's directory by its SLUID instead of its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_JOB = re.compile(r"(?:^|/)job_(\d+)(?:/|$)")
# Users may make cgroups of their own below user.slice (v2) and in systemd's hierarchy (v1).
_SLURM_V1 = re.compile(r"(?:^|/)slurm(?:_[^/]+)?/")
_SLURM_V2 = re.compile(r"^/(?:system\.slice/)?[^/]*slurmstepd\.scope/")

_REMEMBERED = 10_000


def job_in_cgroup(text: str, sluids: Mapping[str, int]) -> int | None:
    """The raw job id that /proc/PID/cgroup tells, or None; `sluids` maps the SLUIDs of known jobs."""
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers.startswith("name="):
            continue
        below_slurm = (_SLURM_V2 if hierarchy == "0" else _SLURM_V1).search(path)
        if below_slurm is None:
            continue
        inner = path[below_slurm.end() :]
        if match := _JOB.search(inner):
            return int(match[1])
        for part in inner.split("/"):
            if (sluid := part.removeprefix("job_")) in sluids:
                return sluids[sluid]
    return None


def job_in_environment(environment: bytes) -> int | None:
    """SLURM_JOB_ID of /proc/PID/environ; the process's owner can write what he likes there."""
    for entry in environment.split(b"\0"):
        if entry.startswith(b"SLURM_JOB_ID=") and entry[13:].isdigit() and len(entry) < 32:
            return int(entry[13:])
    return None


@dataclass(frozen=True, slots=True)
class JobOwner:
    """What is known of an open job besides its id."""

    uid: int | None
    sluid: str | None = None


class ProcessJobs:
    """Process id → job, remembered so that what a process did last counts after it has gone."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[str, int | None]] = {}

    def job_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        """The open job that process belongs to, or None. `jobs` are the open jobs on this node."""
        directory = self._proc / str(pid)
        try:
            # Field 22, starttime, tells a process from a later one with the same id.
            started = (directory / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            known = self._known.get(pid)
            return known[1] if known is not None else None
        known = self._known.get(pid)
        if known is not None and known[0] == started and known[1] is not None:
            return known[1]
        job = self._read(directory, jobs)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[pid] = (started, job)
        return job

    def meet(self, pids: Iterable[int], jobs: Mapping[int, JobOwner]) -> None:
        """Look up those not known yet: once they are gone, nobody can tell whose they were."""
        for pid in pids:
            if pid not in self._known:
                self.job_of(pid, jobs)

    def _read(self, directory: Path, jobs: Mapping[int, JobOwner]) -> int | None:
        sluids = {owner.sluid: job for job, owner in jobs.items() if owner.sluid}
        try:
            job = job_in_cgroup((directory / "cgroup").read_text("utf-8", "replace"), sluids)
            if job is None:
                job = self._by_environment(directory, jobs)
        except OSError:
            return None
        return job if job in jobs else None

    def _by_environment(self, directory: Path, jobs: Mapping[int, JobOwner]) -> int | None:
        """Without cgroups: what the environment claims, if the process is run by the job's own user."""
        uid = directory.stat().st_uid
        with (directory / "environ").open("rb") as file:
            job = job_in_environment(file.read(1 << 20))
        return job if job is not None and job in jobs and jobs[job].uid == uid else None
