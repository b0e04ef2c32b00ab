"""Find a job's cgroups on this node and read their processes and counters.

cgroup v1   cpuacct|memory|freezer|…/slurm[_NODE]/uid_U/job_J/step_S/task_T
cgroup v2   system.slice/[NODE_]slurmstepd.scope/job_J/step_S/…

In cgroup v2, Slurm 26.05 names the job's directory by its SLUID. A requeued job gets another SLUID, which
neither the earlier epilog (measured on 26.05.5) nor slurm-gpudbd reports. In this case, the job ID is read
from the title of a slurmstepd, such as `slurmstepd: [4.batch]`. cgroup.py maps a process to its job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

from slurm_gpu.node.process.procfs import read

# The hierarchy of every controller contains the job's processes; the first existing hierarchy is used.
_V1_WITH_PROCESSES = ("freezer", "cpuacct", "memory", "devices", "cpuset")
# Anonymous and shared memory, counted once: RSS without mapped files.
_V1_MEMORY = (b"total_rss", b"total_shmem")
_V2_MEMORY = (b"anon", b"shmem")
_STAT_LIMIT = 1 << 14
_PROCS_LIMIT = 1 << 20
_MOST_DIRECTORIES = 2000
# There are about three entries per current job; after the cache is cleared, they are found again.
_REMEMBERED = 1_000
_MOST_STEPS = 100
_FROZEN = frozenset({b"FROZEN", b"FREEZING", b"1"})
_NOT_JOBS = frozenset({"system"})
_SLUID = re.compile(r"s[0-9A-Z]{1,20}", re.ASCII)
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,18})\.")
_TITLE_BYTES = 64
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class CgroupCounter:
    """A counter of the cgroup `identity`; it restarts at 0 if Slurm recreates the cgroup."""

    identity: int
    value: float


@dataclass(frozen=True, slots=True)
class JobName:
    """The identifiers that the name of a job's directory may contain."""

    job_id: int
    uid: int | None = None
    sluid: str | None = None

    @property
    def directories(self) -> Sequence[str]:
        """Return all possible directory names, the most likely one first."""
        by_id = f"job_{self.job_id}"
        return (by_id,) if self.sluid is None else (by_id, self.sluid, f"job_{self.sluid}")


class JobCgroups:
    """The cgroups below `mount` in which the slurmd of `node` puts jobs."""

    def __init__(self, node: str, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._mount, self._proc = str(mount), str(proc)
        self._v1_roots = (f"slurm_{node}", "slurm")
        self._v2_roots = (f"{node}_slurmstepd.scope", "slurmstepd.scope")
        self._known: dict[tuple[str, JobName], str] = {}
        # The job IDs of directories that are named after a SLUID.
        self._titled: dict[str, int] = {}
        # For each job, the state file of a step that was not frozen in the last poll.
        self._running: dict[JobName, str] = {}

    def pids(self, job: JobName, limit: int) -> Sequence[int] | None:
        """Return the job's processes, at most `limit` + 1, or None if the job has no cgroup here."""
        directory = self._of_processes(job)
        return None if directory is None else _pids(directory, limit)

    def age_s(self, job: JobName, wall_s: float) -> float | None:
        """Return the age of the job's cgroup in seconds, or None if the job has no cgroup here."""
        directory = self._of_processes(job)
        try:
            return None if directory is None else wall_s - os.stat(directory).st_ctime  # noqa: PTH116
        except OSError:
            return None

    def cpu_s(self, job: JobName) -> CgroupCounter | None:
        """Return the CPU seconds of the job's processes, including those that have ended."""
        if self._is_v2():
            return _counted(self._v2(job), "cpu.stat", _v2_cpu_s)
        return _counted(self._v1("cpuacct", job), "cpuacct.usage", lambda text: int(text) / 1e9)

    def memory_mib(self, job: JobName) -> float | None:
        """Return the memory of the job's processes, excluding the page cache."""
        if self._is_v2():
            found = _counted(self._v2(job), "memory.stat", lambda text: _sum(text, _V2_MEMORY))
        else:
            found = _counted(self._v1("memory", job), "memory.stat", lambda text: _sum(text, _V1_MEMORY))
        return None if found is None else found.value / 2**20

    def frozen(self, job: JobName) -> bool | None:
        """Return whether Slurm has suspended the job by freezing all its steps; None if it has no steps.

        As measured on 22.05 with proctrack/cgroup, `scontrol suspend` sends SIGTSTP and freezes each step,
        including the external one, 2 s later. Slurm never freezes the job's directory. Resuming thaws the
        steps immediately. Only root can suspend or resume jobs.
        """
        # One step that is not frozen shows that the job runs; usually, it is the same step as last time.
        if (known := self._running.get(job)) is not None and _is_frozen(known) is False:
            return False
        self._running.pop(job, None)
        v2 = self._is_v2()
        directory = self._v2(job) if v2 else self._v1("freezer", job)
        name = "user/cgroup.freeze" if v2 else "freezer.state"
        frozen = None
        for step in () if directory is None else _names(directory)[:_MOST_STEPS]:
            file = f"{directory}/{step}/{name}"
            frozen = _is_frozen(file) if frozen is None else frozen and _is_frozen(file) is not False
            if frozen is False:
                _remember(self._running, job, file)
                break
        return frozen

    def is_alone(self, job: JobName) -> bool:
        """Return whether no other job has processes in a cgroup here; true if the job has no cgroup."""
        directory = self._of_processes(job)
        own = {*job.directories, os.path.basename(directory or "")}  # noqa: PTH119
        others = (path for path in self._jobs(job) if os.path.basename(path) not in own)  # noqa: PTH119
        return not any(_pids(other, 0) for other in others)

    def job_of_sluid(self, sluid: str) -> int | None:
        """Return the raw ID of the job whose directory is named after the SLUID, or None if not found."""
        found = (self._job_in(f"{scope}/{sluid}") for scope in self._scopes())
        return next((job for job in found if job is not None), None)

    # Paths

    def _is_v2(self) -> bool:
        return os.path.exists(f"{self._mount}/cgroup.controllers")  # noqa: PTH110

    def _of_processes(self, job: JobName) -> str | None:
        if self._is_v2():
            return self._v2(job)
        for controller in _V1_WITH_PROCESSES:
            directory = self._v1(controller, job)
            if directory is not None:
                return directory
        return None

    def _v1(self, controller: str, job: JobName) -> str | None:
        return self._found(controller, job, self._v1_candidates(controller, job))

    def _v1_candidates(self, controller: str, job: JobName) -> Iterator[str]:
        for root in self._v1_roots:
            top = f"{self._mount}/{controller}/{root}"
            users = _names(top) if job.uid is None else [f"uid_{job.uid}"]
            yield from (f"{top}/{user}/{name}" for user in users for name in job.directories)

    def _v2(self, job: JobName) -> str | None:
        by_name = (f"{scope}/{name}" for scope in self._scopes() for name in job.directories)
        return self._found("", job, chain(by_name, self._v2_by_title(job)))

    def _v2_by_title(self, job: JobName) -> Iterator[str]:
        for scope in self._scopes():
            for name in filter(_SLUID.fullmatch, _names(scope)):
                if self._job_in(f"{scope}/{name}") == job.job_id:
                    yield f"{scope}/{name}"

    def _job_in(self, directory: str) -> int | None:
        """Return the job ID in the title of a slurmstepd, whose own cgroup contains no user processes."""
        if (known := self._titled.get(directory)) is not None:
            return known
        for step in _names(directory):
            try:
                for pid in read(f"{directory}/{step}/slurm/cgroup.procs", _STAT_LIMIT).split():
                    title = read(f"{self._proc}/{int(pid)}/cmdline", _TITLE_BYTES)
                    if found := _TITLE.match(title):
                        _remember(self._titled, directory, int(found[1]))
                        return int(found[1])
            except (OSError, ValueError):
                continue  # the process or directory is gone
        return None

    def _found(self, controller: str, job: JobName, candidates: Iterator[str]) -> str | None:
        """Return the last known path if it still exists, or else the first candidate that exists."""
        known = self._known.get((controller, job))
        if known is not None and os.path.isdir(known):  # noqa: PTH112
            return known
        found = next((path for path in candidates if os.path.isdir(path)), None)  # noqa: PTH112
        if found is not None:
            _remember(self._known, (controller, job), found)
        return found

    def _scopes(self) -> Iterator[str]:
        """Yield slurmstepd's scopes in system.slice, in other slices, and at the top level."""
        slices = ["system.slice", *(n for n in _names(self._mount) if n.endswith(".slice")), "."]
        for root in self._v2_roots:
            for name in dict.fromkeys(slices):
                scope = f"{self._mount}/{name}/{root}"
                if os.path.isdir(scope):  # noqa: PTH112
                    yield scope

    def _jobs(self, job: JobName) -> Iterator[str]:
        """Yield the directories of all jobs in the job's cgroup hierarchy."""
        own = self._of_processes(job)
        if own is None:
            return
        parent = os.path.dirname(own)  # noqa: PTH120
        if self._is_v2():
            yield from (f"{parent}/{name}" for name in _names(parent) if name not in _NOT_JOBS)
            return
        top = os.path.dirname(parent)  # noqa: PTH120
        for user in _names(top):
            if user.startswith("uid_"):
                yield from (f"{top}/{user}/{name}" for name in _names(f"{top}/{user}"))


def _names(directory: str) -> list[str]:
    """Return the names of subdirectories, or [] if the directory does not exist."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _pids(directory: str, limit: int) -> Sequence[int]:
    """Return the IDs of at most `limit` + 1 processes in the directory and its subdirectories.

    If there are more than 2,000 directories, the list is padded to `limit` + 1, so that callers do not
    mistake it for a complete list.
    """
    found: list[int] = []
    waiting = [directory]
    for _ in range(_MOST_DIRECTORIES):
        if not waiting or len(found) > limit:
            break
        here = waiting.pop()
        try:
            lines = read(f"{here}/cgroup.procs", _PROCS_LIMIT).split()
        except OSError:
            lines = []  # the directory is gone, or contains only threads
        found.extend(map(int, lines[: limit + 1 - len(found)]))
        waiting.extend(f"{here}/{name}" for name in _names(here))
    if waiting and found:
        found += found[-1:] * (limit + 1 - len(found))
    return found


def _is_frozen(file: str) -> bool | None:
    """Return whether the step with this state file is frozen, or None if there is no such step."""
    try:
        return read(file, _STAT_LIMIT).strip() in _FROZEN
    except OSError:
        return None


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def _counted(
    directory: str | None, name: str, parse: Callable[[bytes], float | None]
) -> CgroupCounter | None:
    """Read a counter of a cgroup; return None if the cgroup or the counter does not exist."""
    if directory is None:
        return None
    try:
        value = parse(read(f"{directory}/{name}", _STAT_LIMIT))
        return None if value is None else CgroupCounter(os.stat(directory).st_ino, value)  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _v2_cpu_s(text: bytes) -> float | None:
    used_us = _sum(text, (b"usage_usec",))
    return None if used_us is None else used_us / 1e6


def _sum(text: bytes, names: Sequence[bytes]) -> float | None:
    """Return the sum of the named values in `name value` lines, or None if the first is missing."""
    values = dict(line.split(b" ", 1) for line in text.splitlines() if b" " in line)
    if names[0] not in values:
        return None
    return float(sum(int(values[name]) for name in names if name in values))
