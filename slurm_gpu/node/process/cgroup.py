"""Find the job of a process by the name of its cgroup. No other module parses these names.

cgroup v1   /slurm_n1/uid_1001/job_4/step_batch        (or /slurm/… on a node with one slurmd)
cgroup v2   /system.slice/slurmstepd.scope/job_4/step_0/user/task_0
Slurm 26.05 names the job's directory by its SLUID instead of its ID.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Users may create cgroups below user.slice (v2) and in systemd's hierarchy (v1).
_SLURM_V1 = re.compile(r"(?:^|/)slurm(?:_[^/]+)?/uid_\d+/", re.ASCII)
_SLURM_V2 = re.compile(r"^/(?:system\.slice/)?[^/]*slurmstepd\.scope/")
_JOB = re.compile(r"(?:job_)?([A-Za-z0-9]+)", re.ASCII)
_BY_ID = re.compile(r"job_(\d{1,18})", re.ASCII)
# The cgroups of slurmstepd itself in cgroup v2.
_NOT_JOBS = frozenset({"system", "user", ""})


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The user and SLUID of an open job."""

    uid: int | None
    sluid: str | None = None


@dataclass(frozen=True, slots=True)
class CgroupJob:
    """The job to which a cgroup belongs, identified by its raw ID or its SLUID."""

    job_id: int | None = None
    sluid: str | None = None


def job_in_cgroup(text: str) -> CgroupJob | None:
    """Return the job in the text of /proc/PID/cgroup, or None for a process outside job cgroups.

    Only the outermost directory counts, because jobs can create directories below it.
    """
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers.startswith("name="):
            continue
        below_slurm = (_SLURM_V2 if hierarchy == "0" else _SLURM_V1).search(path)
        if below_slurm is None:
            continue
        name = path[below_slurm.end() :].partition("/")[0]
        if by_id := _BY_ID.fullmatch(name):
            return CgroupJob(job_id=int(by_id[1]))
        by_sluid = _JOB.fullmatch(name)
        if name not in _NOT_JOBS and by_sluid is not None:
            return CgroupJob(sluid=by_sluid[1])
    return None


def job_in_environment(environment: bytes) -> int | None:
    """Return SLURM_JOB_ID from the content of /proc/PID/environ, which the process's owner can forge."""
    for entry in environment.split(b"\0"):
        if entry.startswith(b"SLURM_JOB_ID=") and entry[13:].isdigit() and len(entry) < 32:
            return int(entry[13:])
    return None


def raw_id(found: CgroupJob, jobs: Mapping[int, JobOwner]) -> int | None:
    """Return the raw ID of the job, or None if only its SLUID is known and `jobs` does not contain it."""
    if found.job_id is not None:
        return found.job_id
    return next((job for job, owner in jobs.items() if owner.sluid == found.sluid), None)
