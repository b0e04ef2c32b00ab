"""Extract a segment's part of a reading: on a shared device, only the usage of the segment's processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_gpu.node.gpu.reading import DeviceMemory, GpuProcess, Reading
from slurm_gpu.node.measure.tally import DeviceSample
from slurm_gpu.node.process.process_jobs import NO_JOB


class Owners:
    """The processes that are listed for a shared device, by job (ProcessJobs.owner_of).

    Some drivers list nonexistent processes instead of real ones. Therefore, it is certain that a job has no
    process only if every listed process belongs to another known job.
    """

    def __init__(self, processes: Sequence[GpuProcess], owner_of: Callable[[int], int | None]) -> None:
        self._found: dict[int | None, list[GpuProcess]] = {}
        for process in processes:
            self._found.setdefault(owner_of(process.pid), []).append(process)

    def of(self, job: int) -> Sequence[GpuProcess] | None:
        """Return the job's processes, or None if some of them may not be listed."""
        own = self._found.get(job)
        if own is None and not self._found.keys() & {None, NO_JOB}:
            return ()
        return own


def whole(reading: Reading, *, detailed: bool, free_after: bool = True) -> DeviceSample:
    """Return the sample of a segment that has the device to itself; see DeviceSample for `free_after`."""
    return DeviceSample(
        reading=reading,
        memory_used=None if reading.memory is None else reading.memory.used,
        processes=None if reading.processes is None else len(reading.processes),
        free_after=free_after,
        detailed=detailed,
    )


def part(reading: Reading, own: Sequence[GpuProcess] | None, *, detailed: bool) -> DeviceSample:
    """Return the sample of a segment on a shared device; `own` is None if its processes are unknown."""
    return DeviceSample(
        reading=reading,
        memory_used=_process_memory(own, reading.memory),
        processes=None if own is None else len(own),
        alone=False,
        detailed=detailed,
    )


def _process_memory(processes: Sequence[GpuProcess] | None, memory: DeviceMemory | None) -> int | None:
    """Return the memory that the processes use, limited to the device's used memory, or None if unknown."""
    if processes is None or memory is None:
        return None
    used = [process.used for process in processes]
    known = [u for u in used if u is not None]
    return min(memory.used, sum(known)) if len(known) == len(used) else None
