"""CPU time and storage traffic of a changing set of processes: none is lost, none counted twice.

The kernel keeps the times of a process that has ended only by adding them to those of the parent that waited
for it. So each look counts what a process used itself and what its children used, less what these had shown
on their own before they ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.node.procfs import PAGE_BYTES, TICKS_PER_S, Processes, ProcessIo, ProcessStat

MAX_PROCESSES = 4096
"""Beyond this many in a job its processes are not measured one by one."""

PER_LOOK = 256
"""So many are read in one look; a larger job is read in turns."""

# A parent read before it waited for a child shows it at the next look; later it never will.
_LOOKS_TO_WAIT = 2


@dataclass(slots=True)
class _Ended:
    """What descendants had shown before they ended, which will show again in the parent's sums."""

    ticks: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    looks: int = 0

    def add(self, known: _Known) -> None:
        ended = known.ended or _Ended()
        io = known.io or ProcessIo(0, 0)
        self.ticks += known.stat.own_ticks + known.stat.children_ticks + ended.ticks
        self.read_bytes += io.read_bytes + ended.read_bytes
        self.write_bytes += io.write_bytes + ended.write_bytes
        self.looks = 0


@dataclass(slots=True)
class _Known:
    """A process as it was seen last."""

    stat: ProcessStat
    io: ProcessIo | None
    ended: _Ended | None = None


class ProcessSums:
    """Sums since `since_s` (Clock.monotonic(), 0 for all that the processes ever did); None = not measured.

    Of a process that began before that, what it had done when it was seen first is left out.
    """

    def __init__(self, processes: Processes, since_s: float) -> None:
        self._processes = processes
        self._known: dict[int, _Known] = {}
        self._since_ticks = int(since_s * TICKS_PER_S)
        self._looked = self._too_many = self._io_denied = False
        self._ticks = self._read_bytes = self._write_bytes = 0
        self._turn = 0

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds."""
        return self._ticks / TICKS_PER_S if self._measured else None

    @property
    def read_bytes(self) -> int | None:
        """Bytes fetched from storage."""
        return self._read_bytes if self._measured and not self._io_denied else None

    @property
    def write_bytes(self) -> int | None:
        """Bytes sent to storage."""
        return self._write_bytes if self._measured and not self._io_denied else None

    @property
    def resident_mib(self) -> float | None:
        """Sum of what each process has in memory now; pages that several share count for each."""
        if not self._measured:
            return None
        return sum(known.stat.resident_pages for known in self._known.values()) * PAGE_BYTES / 2**20

    @property
    def _measured(self) -> bool:
        return self._looked and not self._too_many

    def busiest(self) -> Sequence[int]:
        """The processes that run, those that used most CPU time first."""
        return sorted(self._known, key=lambda pid: -self._known[pid].stat.own_ticks)

    def look(self, pids: Sequence[int]) -> None:
        """Count what these processes, all of the job now, have used since the last look."""
        if len(pids) > MAX_PROCESSES:
            self._too_many = True
            self._known.clear()
        if self._too_many or not (pids or self._known):
            return
        fresh = self._read(pids)
        self._bury(set(pids), fresh)
        for pid, (stat, io) in fresh.items():
            before = self._known.get(pid)
            if before is not None:
                self._count(before, stat, io)
                before.stat, before.io = stat, before.io if io is None else io
            else:
                self._known[pid] = _Known(stat, io)
                if stat.started >= self._since_ticks:
                    self._add(stat.own_ticks + stat.children_ticks, io)
        self._looked = True

    def _read(self, pids: Sequence[int]) -> dict[int, tuple[ProcessStat, ProcessIo | None]]:
        """Those whose turn it is; one that is gone is not in it."""
        if len(pids) > PER_LOOK:
            turns = -(-len(pids) // PER_LOOK)
            self._turn = (self._turn + 1) % turns
            pids = sorted(pids)[self._turn :: turns]
        fresh = {}
        for pid in pids:
            try:
                stat = self._processes.stat(pid)
            except OSError:
                continue
            try:
                io = self._processes.io(pid)
            except PermissionError:
                io, self._io_denied = None, True
            except OSError:
                io = None  # it is just going; what it did last shows in its parent
            fresh[pid] = (stat, io)
        return fresh

    def _bury(self, alive: set[int], fresh: dict[int, tuple[ProcessStat, ProcessIo | None]]) -> None:
        """Forget those that have ended; what they had shown is remembered with whoever may have waited."""
        gone = {
            pid: known
            for pid, known in self._known.items()
            if pid not in alive or (pid in fresh and fresh[pid][0].started != known.stat.started)
        }
        for pid in gone:
            del self._known[pid]
        for known in gone.values():
            parent = known.stat.ppid
            for _ in gone:
                if parent not in gone:
                    break
                parent = gone[parent].stat.ppid
            heir = self._known.get(parent)
            if heir is not None:
                heir.ended = heir.ended or _Ended()
                heir.ended.add(known)

    def _count(self, before: _Known, stat: ProcessStat, io: ProcessIo | None) -> None:
        own = stat.own_ticks - before.stat.own_ticks
        children = stat.children_ticks - before.stat.children_ticks
        read = written = 0
        if io is not None and before.io is not None:
            read = io.read_bytes - before.io.read_bytes
            written = io.write_bytes - before.io.write_bytes
        ended = before.ended
        if ended is not None:
            ticks = min(children, ended.ticks)
            # The kernel does not tell the traffic of a process from that of its children.
            read_before, written_before = min(read, ended.read_bytes), min(written, ended.write_bytes)
            children, read, written = children - ticks, read - read_before, written - written_before
            ended.ticks -= ticks
            ended.read_bytes -= read_before
            ended.write_bytes -= written_before
            ended.looks += 1
            if ended.looks >= _LOOKS_TO_WAIT:
                before.ended = None
        self._add(max(0, own) + max(0, children), ProcessIo(max(0, read), max(0, written)))

    def _add(self, ticks: int, io: ProcessIo | None) -> None:
        self._ticks += ticks
        if io is not None:
            self._read_bytes += io.read_bytes
            self._write_bytes += io.write_bytes
