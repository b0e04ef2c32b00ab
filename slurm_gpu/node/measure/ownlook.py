"""What of a reading is one segment's own: all of it, or what its processes took of a shared device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_gpu.node.gpu.reading import Memory, Process, Reading
from slurm_gpu.node.measure.tally import Look


def by_job(
    processes: Sequence[Process] | None, whose: Callable[[int], int | None]
) -> Mapping[int, Sequence[Process]] | None:
    """Processes by job (ProcessJobs.whose); None where the device does not show processes."""
    if processes is None:
        return None
    found: dict[int, list[Process]] = {}
    for process in processes:
        job = whose(process.pid)
        if job is not None:
            found.setdefault(job, []).append(process)
    return found


def whole(reading: Reading, *, detailed: bool, free_after: bool = True) -> Look:
    """The look of a segment that holds the device alone; `free_after`: nobody has held it since its end."""
    return Look(
        reading=reading,
        memory_used=None if reading.memory is None else reading.memory.used,
        processes=None if reading.processes is None else len(reading.processes),
        free_after=free_after,
        detailed=detailed,
    )


def part(reading: Reading, own: Sequence[Process] | None, *, detailed: bool) -> Look:
    """The look of a segment that shares the device; `own` are its processes, None if unknown."""
    return Look(
        reading=reading,
        memory_used=_process_memory(own, reading.memory),
        processes=None if own is None else len(own),
        alone=False,
        detailed=detailed,
    )


def _process_memory(processes: Sequence[Process] | None, memory: Memory | None) -> int | None:
    """Bytes of these processes together, never more than the device has in use; None if unknown."""
    if processes is None or memory is None:
        return None
    used = [process.used for process in processes]
    known = [u for u in used if u is not None]
    return min(memory.used, sum(known)) if len(known) == len(used) else None
