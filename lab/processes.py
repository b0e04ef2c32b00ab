"""Find and end the lab's processes, and no others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from lab.errors import LabError
from lab.layout import TAG_VARIABLE, Layout

PROC = Path("/proc")

# Daemons that are children of this process.
started_here: set[int] = set()


def process_ids() -> Iterator[int]:
    """Yield the IDs of all visible processes."""
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def start_ticks(pid: int) -> int | None:
    """Return the start time of ``pid`` in clock ticks since boot; None if it has ended or is a zombie.

    A process is identified by its ID and start time together, since the kernel reuses IDs.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _environment(pid: int) -> frozenset[bytes]:
    try:
        return frozenset((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def _uid(pid: int) -> int | None:
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def _is_of_this_machine(pid: int) -> bool:
    """Return whether ``pid`` is in this process's root and PID namespace, not in a container or chroot."""
    process = PROC / str(pid)
    try:
        return os.path.samestat((process / "root").stat(), Path("/").stat()) and (
            (process / "ns" / "pid").readlink() == (PROC / "self" / "ns" / "pid").readlink()
        )
    except OSError:
        return False


def _is_stepd_of(pid: int, root: Path) -> bool:
    """Return whether ``pid`` is a slurmstepd with an open file in the lab.

    The environment of a slurmstepd cannot be read, since the process title overwrites it.
    """
    try:
        if (PROC / str(pid) / "exe").readlink().name != "slurmstepd":
            return False
        opened = [entry.readlink() for entry in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return any(path.is_relative_to(root) for path in opened)


def _ancestors() -> set[int]:
    """Return this process and its ancestors, which must survive even if they have the lab's tag."""
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = _parent(pid)
    return found


def lab_processes(layout: Layout, uids: Collection[int], in_cgroups: Collection[int]) -> set[int]:
    """Return the IDs of all live processes of the lab.

    The lab's processes are those with its tag, jobs submitted to its slurmctld, its slurmstepd, processes of
    its users (``uids``) or in its cgroups (``in_cgroups``), and the children of all of them. Processes in
    containers and chroots are excluded, since they may belong to another lab.
    """
    tag = f"{TAG_VARIABLE}={layout.root}".encode()
    submitted = f"SLURM_CONF={layout.slurm_conf}".encode()
    found = set(in_cgroups)
    children: dict[int, list[int]] = {}
    for pid in process_ids():
        children.setdefault(_parent(pid), []).append(pid)
        if not _is_of_this_machine(pid):
            continue
        environment = _environment(pid)
        if (
            tag in environment
            or (submitted in environment and any(item.startswith(b"SLURM_JOB_ID=") for item in environment))
            or _uid(pid) in uids
            or _is_stepd_of(pid, layout.root)
        ):
            found.add(pid)
    spared = _ancestors()
    pending = list(found - spared)
    while pending:
        for child in children.get(pending.pop(), []):
            if child not in found:
                found.add(child)
                pending.append(child)
    return {pid for pid in found - spared if start_ticks(pid) is not None}


def kill_all(find: Callable[[], Collection[int]], deadline_s: float = 60.0) -> int:
    """Kill the processes that ``find`` returns, repeatedly, until there are none; return their number."""
    killed: set[int] = set()
    end = time.monotonic() + deadline_s
    while alive := find():
        if time.monotonic() > end:
            raise LabError(f"processes {sorted(alive)} did not end after SIGKILL; inspect them with ps -fp")
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.add(pid)
        reap()
        time.sleep(0.02)
    reap()
    return len(killed)


def reap() -> None:
    """Reap daemons that this process started and that have ended, so that no zombies remain."""
    for pid in tuple(started_here):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            ended = True
        if ended:
            started_here.discard(pid)
