"""Find the job of a process, read it from /proc only once, and keep it after the process has ended.

The cgroup, owner and program come from the kernel and are trusted. The environment, which a process can
change, is used only if the process is not in a job's cgroup, and only for jobs of the same user.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.node.process.cgroup import CgroupJob, JobOwner, job_in_cgroup, job_in_environment, raw_id

log = logging.getLogger(__name__)

# MPS's processes serve all clients on a GPU. Outside a job's cgroup, they do not belong to any job.
MPS_PROGRAMS = frozenset({"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"})

# Lower uids belong to system accounts, such as those of monitoring, the display and nvidia-persistenced.
FIRST_USER_UID = 1000

# No job has this ID.
NO_JOB = 0

# This cache size suffices for the processes on a node's GPUs in the 20 s that the driver's samples cover.
_REMEMBERED = 2_000
# A pid is assumed to identify the same process for this long.
_FRESH_S = 0.5
# Interval for rereading the cgroup of a process without a job; Slurm may still add the process to a job.
_REREAD_S = 10.0
_FILE_BYTES = 1 << 16
_ENVIRONMENT_BYTES = 1 << 20
# The owner of a process can block reads of its environment indefinitely.
_ENVIRONMENT_S = 0.2
_REAL_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """The origin of a process; `started` distinguishes it from a later process with the same pid.

    `cgroup` is the job of the process's cgroup; if there is none, `claimed` is the job in its environment.
    `uid` is the user who started the process, even after setuid. `program` is the name of the executable if
    root owns the file; users cannot forge it.
    """

    started: bytes
    uid: int
    cgroup: CgroupJob | None
    claimed: int | None
    program: str | None

    def job(self, jobs: Mapping[int, JobOwner]) -> int | None:
        """Return the job in `jobs` to which the process belongs, or None if there is none."""
        if self.cgroup is not None:
            job = raw_id(self.cgroup, jobs)
            return job if job in jobs else None
        job = self.claimed
        return job if job is not None and job in jobs and jobs[job].uid == self.uid else None


@dataclass(slots=True)
class _KnownProcess:
    origin: ProcessOrigin
    read_s: float
    seen_s: float
    job: int | None = None


class ProcessJobs:
    """Caches the jobs of processes, so that the last samples of an ended process still count.

    `monotonic` returns seconds. `job_of_sluid` returns the job with a given SLUID on this node.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        monotonic: Callable[[], float] = time.monotonic,
        job_of_sluid: Callable[[str], int | None] = lambda sluid: None,
    ) -> None:
        self._proc, self._monotonic, self._job_of_sluid = str(proc), monotonic, job_of_sluid
        self._known: dict[int, _KnownProcess] = {}
        self._environments = _Environments()

    def job_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        """Return the job of a process, or None if it is not in `jobs`, the open jobs of this node.

        The result stays the same after the job is closed, because the job's last samples arrive later.
        """
        self.origin(pid)
        known = self._known.get(pid)
        if known is None:
            return None
        if known.job is None:
            known.job = known.origin.job(jobs)
        return known.job

    def owner_of(self, pid: int, jobs: Mapping[int, JobOwner], allocated: Collection[int]) -> int | None:
        """Return the job for which a process counts on a GPU that the `allocated` jobs share.

        The result is NO_JOB if the process does not belong to any of these jobs, and None if the job is
        unknown. The job is unknown if the process ended before it was read or belongs to MPS, which serves
        all clients, or if the process names no job and its user has several of these jobs. If only one
        belongs to the process's user, the process counts for that job, because a daemon may have started a
        container for it.
        """
        job = self.job_of(pid, jobs)
        known = self._known.get(pid)
        if job is not None or known is None:
            return job
        origin = known.origin
        if origin.cgroup is not None:
            return NO_JOB
        if origin.program in MPS_PROGRAMS:
            return None
        if origin.uid < FIRST_USER_UID:
            return NO_JOB
        its = [job for job in allocated if job in jobs and jobs[job].uid == origin.uid]
        return NO_JOB if not its else its[0] if len(its) == 1 else None

    def look_up(self, pids: Iterable[int], jobs: Mapping[int, JobOwner]) -> None:
        """Look up unknown processes now, because their jobs cannot be found after they have ended."""
        for pid in pids:
            if pid not in self._known:
                self.job_of(pid, jobs)

    def origin(self, pid: int) -> ProcessOrigin | None:
        """Return the origin of a process, or None if it has ended."""
        known = self._known.get(pid)
        if known is not None and self._monotonic() - known.seen_s < _FRESH_S:
            return known.origin
        try:
            # Files opened relative to this directory belong to this process, even if its pid is reused.
            directory = os.open(f"{self._proc}/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return self._origin(pid, directory)
        except OSError:
            return None
        finally:
            os.close(directory)

    def _origin(self, pid: int, directory: int) -> ProcessOrigin | None:
        fields = _read(directory, "stat").rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        started, now_s = fields[19], self._monotonic()
        known = self._known.get(pid)
        if known is not None and known.origin.started == started:
            known.seen_s = now_s
            if known.origin.cgroup is not None or now_s - known.read_s < _REREAD_S:
                return known.origin
        cgroup = job_in_cgroup(_read(directory, "cgroup").decode("utf-8", "replace"))
        if cgroup is not None and cgroup.sluid is not None:
            job_id = self._job_of_sluid(cgroup.sluid)
            cgroup = cgroup if job_id is None else CgroupJob(job_id)
        uid = _REAL_UID.search(_read(directory, "status"))
        if uid is None:
            return None
        program = _program_of_root(directory)
        asked = cgroup is None and program not in MPS_PROGRAMS
        origin = ProcessOrigin(
            started=started,
            uid=int(uid[1]),
            cgroup=cgroup,
            claimed=self._claimed(directory, int(uid[1])) if asked else None,
            program=program,
        )
        self._remember(pid, origin)
        return origin

    def _remember(self, pid: int, origin: ProcessOrigin) -> None:
        before, now_s = self._known.pop(pid, None), self._monotonic()
        same = before is not None and before.origin.started == origin.started
        job = before.job if same and before is not None else None
        self._known[pid] = _KnownProcess(origin, now_s, now_s, job)
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def _claimed(self, directory: int, uid: int) -> int | None:
        environment = self._environments.read(directory, uid)
        return None if environment is None else job_in_environment(environment)


class _Environments:
    """Reads environments in separate threads; if a read blocks, that user's environments are ignored."""

    def __init__(self) -> None:
        self._stuck: set[int] = set()

    def read(self, directory: int, uid: int) -> bytes | None:
        """Return the environment of a process, or None if it cannot be read."""
        if uid in self._stuck:
            return None
        found: list[bytes] = []
        own = os.dup(directory)
        thread = threading.Thread(target=_read_into, args=(found, own), name="environ", daemon=True)
        thread.start()
        thread.join(_ENVIRONMENT_S)
        if thread.is_alive():
            self._stuck.add(uid)
            log.warning(
                "reading the environment of a process of uid %d blocks; the user's environments are ignored",
                uid,
            )
            return None
        return found[0] if found else None


def _read_into(found: list[bytes], directory: int) -> None:
    try:
        found.append(_read(directory, "environ", _ENVIRONMENT_BYTES))
    except OSError:
        return  # the process ended
    finally:
        os.close(directory)


def _read(directory: int, name: str, limit: int = _FILE_BYTES) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        chunks, size = [], 0
        while size < limit and (chunk := os.read(file, limit - size)):
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)
    finally:
        os.close(file)


def _program_of_root(directory: int) -> str | None:
    try:
        if os.stat("exe", dir_fd=directory).st_uid != 0:
            return None
        return os.path.basename(os.readlink("exe", dir_fd=directory))  # noqa: PTH119 - dir_fd
    except OSError:
        return None  # a kernel thread has no executable
