"""Whose a process is: read from /proc once, remembered as long as the process lives and a while longer.

What the kernel tells (cgroup, owner, program) is believed; what the process may have written itself (its
environment) only where it has no job's cgroup, and only for a job of the same user.
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

MPS_PROGRAMS = frozenset({"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"})
"""They work for all clients on a GPU; outside a job's cgroup they are no job's, whoever started them."""

FIRST_UID_OF_PEOPLE = 1000
"""Below are system accounts: root's monitoring, the display's, nvidia-persistenced's."""

NO_JOB = 0
"""No job has this number."""

# As many as a node's GPUs may show in the 20 s that the driver's samples reach back.
_REMEMBERED = 2_000
# For so long a process is taken to be the one that had this id just now.
_FRESH_S = 0.5
# One that belongs to no job may still be put into one: so often its cgroup is read anew.
_ANEW_S = 10.0
_FILE_BYTES = 1 << 16
_ENVIRONMENT_BYTES = 1 << 20
# The owner of a process can make reading its environment wait for ever.
_ENVIRONMENT_S = 0.2
_REAL_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """Where a process comes from. `started` tells it from a later one with the same id.

    `cgroup` is the job whose cgroup it is in, `claimed` the job that its environment names where it is in
    none. `uid` is the user who started it, whatever it has become since. `program` is the name of its
    executable where that is root's own, so that no user can have chosen it.
    """

    started: bytes
    uid: int
    cgroup: CgroupJob | None
    claimed: int | None
    program: str | None

    def job(self, jobs: Mapping[int, JobOwner]) -> int | None:
        """Which of `jobs` it belongs to."""
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
    """Process id → job, remembered so that what a process did last counts after it has gone.

    `monotonic` counts seconds. `job_of_sluid` finds a job by the name of its cgroup on this node.
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
        """The job that process belongs to, or None. `jobs` are the open jobs on this node.

        Once told it stays so, also after the job has been closed: its last samples are still to come.
        """
        self.origin(pid)
        known = self._known.get(pid)
        if known is None:
            return None
        if known.job is None:
            known.job = known.origin.job(jobs)
        return known.job

    def whose(self, pid: int, jobs: Mapping[int, JobOwner], holders: Collection[int]) -> int | None:
        """The job that did what the driver shows of this process on a GPU that `holders` hold.

        NO_JOB where none of them did, None where nobody can tell: it was gone before anybody looked, it is
        MPS's, which works for all clients, or it is in no job's cgroup, names none in its environment, and
        several holders are of its user. Where one is, it is that one's: containers that a daemon started look
        like that.
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
        if origin.uid < FIRST_UID_OF_PEOPLE:
            return NO_JOB
        its = [job for job in holders if job in jobs and jobs[job].uid == origin.uid]
        return NO_JOB if not its else its[0] if len(its) == 1 else None

    def meet(self, pids: Iterable[int], jobs: Mapping[int, JobOwner]) -> None:
        """Look up those not known yet: once they are gone, nobody can tell whose they were."""
        for pid in pids:
            if pid not in self._known:
                self.job_of(pid, jobs)

    def origin(self, pid: int) -> ProcessOrigin | None:
        """Where that process comes from; None if it has gone."""
        known = self._known.get(pid)
        if known is not None and self._monotonic() - known.seen_s < _FRESH_S:
            return known.origin
        try:
            # What is opened in this directory is of this process, even if another gets its id meanwhile.
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
            if known.origin.cgroup is not None or now_s - known.read_s < _ANEW_S:
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
    """Reads environments, each in a thread of its own; who has made one wait is never read again."""

    def __init__(self) -> None:
        self._stuck: set[int] = set()

    def read(self, directory: int, uid: int) -> bytes | None:
        """The environment, None if it cannot be read."""
        if uid in self._stuck:
            return None
        found: list[bytes] = []
        own = os.dup(directory)
        thread = threading.Thread(target=_read_into, args=(found, own), name="environ", daemon=True)
        thread.start()
        thread.join(_ENVIRONMENT_S)
        if thread.is_alive():
            self._stuck.add(uid)
            log.warning("a process of uid %d keeps its environment from being read", uid)
            return None
        return found[0] if found else None


def _read_into(found: list[bytes], directory: int) -> None:
    try:
        found.append(_read(directory, "environ", _ENVIRONMENT_BYTES))
    except OSError:
        return  # it has gone
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
        return None  # a thread of the kernel has none
