"""Sum the CPU time and storage traffic of a changing set of processes, without counting any usage twice.

The kernel keeps the times of an ended process only in the sums of the parent that waited for it. Therefore,
each sample adds the usage of a process and its children, minus the children's usage that was counted before
they ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.node.process.procfs import PAGE_BYTES, TICKS_PER_S, Processes, ProcessIo, ProcessStat

# The processes of a larger job are not measured individually.
MAX_PROCESSES = 4096

# At most this many processes are read per sample; the processes of a larger job are read in rotation.
PER_SAMPLE = 256

# If a parent was read before it waited for a child, the child's usage appears in the next sample or never.
_SAMPLES_TO_WAIT = 2
_NO_IO = ProcessIo(0, 0)


@dataclass(slots=True)
class _EndedDescendants:
    """The usage of ended descendants that was already counted and appears again in their parent's sums."""

    ticks: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    samples_of_ticks: int = 0
    samples_of_storage: int = 0

    def add(self, known: _ProcessSample) -> None:
        ended = known.ended or _EndedDescendants()
        io = known.io or _NO_IO
        self.ticks += known.stat.own_ticks + known.stat.children_ticks + ended.ticks
        self.read_bytes += io.read_bytes + ended.read_bytes
        self.write_bytes += io.write_bytes + ended.write_bytes
        self.samples_of_ticks = self.samples_of_storage = 0

    def without_ticks(self, grown: int) -> int:
        """Return the uncounted part of `grown`, the growth of the children's ticks."""
        again = min(grown, self.ticks)
        self.samples_of_ticks += 1
        self.ticks = self.ticks - again if self.samples_of_ticks < _SAMPLES_TO_WAIT else 0
        return grown - again

    def without_storage(self, grown: ProcessIo) -> ProcessIo:
        """Return the uncounted part of `grown`, the traffic of a process and its children."""
        again = ProcessIo(min(grown.read_bytes, self.read_bytes), min(grown.write_bytes, self.write_bytes))
        self.samples_of_storage += 1
        waits = self.samples_of_storage < _SAMPLES_TO_WAIT
        self.read_bytes = self.read_bytes - again.read_bytes if waits else 0
        self.write_bytes = self.write_bytes - again.write_bytes if waits else 0
        return ProcessIo(grown.read_bytes - again.read_bytes, grown.write_bytes - again.write_bytes)


@dataclass(slots=True)
class _ProcessSample:
    """The last sample of a process."""

    stat: ProcessStat
    io: ProcessIo | None
    ended: _EndedDescendants | None = None


class ProcessSums:
    """The sums since `since_s` (Clock.monotonic()), or since the processes started if it is 0.

    The usage of older processes before their first sample is left out. Sums are None if not measured.
    """

    def __init__(self, processes: Processes, since_s: float) -> None:
        self._processes = processes
        self._known: dict[int, _ProcessSample] = {}
        self._since_ticks = int(since_s * TICKS_PER_S)
        self._has_sampled = self._too_many = self._io_read = self._io_denied = False
        self._ticks = self._read_bytes = self._write_bytes = 0
        self._turn = 0

    @property
    def cpu_s(self) -> float | None:
        """Return the CPU seconds used, or None if they were not measured."""
        return self._ticks / TICKS_PER_S if self._measured else None

    @property
    def read_bytes(self) -> int | None:
        """Return the bytes read from storage, or None if they were not measured."""
        return self._read_bytes if self._measured and self._io_read and not self._io_denied else None

    @property
    def write_bytes(self) -> int | None:
        """Return the bytes written to storage, or None if they were not measured."""
        return self._write_bytes if self._measured and self._io_read and not self._io_denied else None

    @property
    def resident_mib(self) -> float | None:
        """Return the sum of the processes' resident memory; shared pages count for each process."""
        if not self._measured:
            return None
        return sum(known.stat.resident_pages for known in self._known.values()) * PAGE_BYTES / 2**20

    @property
    def _measured(self) -> bool:
        return self._has_sampled and not self._too_many

    def busiest(self) -> Sequence[int]:
        """Return the running processes by descending CPU time."""
        return sorted(self._known, key=lambda pid: -self._known[pid].stat.own_ticks)

    def sample(self, pids: Sequence[int], *, storage: bool = True) -> None:
        """Add the usage of the job's processes since the last sample.

        If `storage` is false, traffic is left for a later sample; this halves the cost.
        """
        if len(pids) > MAX_PROCESSES:
            self._too_many = True
            self._known.clear()
        if self._too_many or not (pids or self._known):
            return
        fresh = self._read(pids, storage=storage)
        self._drop_ended(set(pids), fresh)
        for pid, (stat, io) in fresh.items():
            before = self._known.get(pid)
            if before is not None:
                self._count(before, stat, io)
                before.stat, before.io = stat, before.io if io is None else io
            else:
                self._known[pid] = _ProcessSample(stat, io)
                if stat.started >= self._since_ticks:
                    self._add(stat.own_ticks + stat.children_ticks, io)
        self._has_sampled = True

    def _read(self, pids: Sequence[int], *, storage: bool) -> dict[int, tuple[ProcessStat, ProcessIo | None]]:
        """Read the processes that are due in this sample; processes that have ended are absent."""
        if len(pids) > PER_SAMPLE:
            turns = -(-len(pids) // PER_SAMPLE)
            self._turn = (self._turn + 1) % turns
            pids = sorted(pids)[self._turn :: turns]
        fresh = {}
        for pid in pids:
            try:
                stat = self._processes.stat(pid)
            except OSError:
                continue
            fresh[pid] = (stat, self._io(pid) if storage else None)
        return fresh

    def _io(self, pid: int) -> ProcessIo | None:
        try:
            io = self._processes.io(pid)
        except PermissionError:
            self._io_denied = True
            return None
        except OSError:
            return None  # the process is ending; its last usage appears in its parent
        self._io_read = True
        return io

    def _drop_ended(self, alive: set[int], fresh: dict[int, tuple[ProcessStat, ProcessIo | None]]) -> None:
        """Drop ended processes and pass their recorded usage to their nearest running ancestors."""
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
            ancestor = self._known.get(parent)
            if ancestor is not None:
                ancestor.ended = ancestor.ended or _EndedDescendants()
                ancestor.ended.add(known)

    def _count(self, before: _ProcessSample, stat: ProcessStat, io: ProcessIo | None) -> None:
        own = max(0, stat.own_ticks - before.stat.own_ticks)
        children = max(0, stat.children_ticks - before.stat.children_ticks)
        if before.ended is not None:
            children = before.ended.without_ticks(children)
        began_during_watch = stat.started >= self._since_ticks
        seen = _NO_IO if before.io is None and began_during_watch else before.io
        if io is not None and seen is not None:
            io = ProcessIo(max(0, io.read_bytes - seen.read_bytes), max(0, io.write_bytes - seen.write_bytes))
            if before.ended is not None:
                io = before.ended.without_storage(io)
        else:
            io = None
        self._add(own + children, io)

    def _add(self, ticks: int, io: ProcessIo | None) -> None:
        self._ticks += ticks
        if io is not None:
            self._read_bytes += io.read_bytes
            self._write_bytes += io.write_bytes
