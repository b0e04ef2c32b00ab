"""What of a reading is one segment's own: all of it, or what its processes took of a shared device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_gpu.node.reading import Memory, Process, Reading
from slurm_gpu.node.tally import Look


def by_job(
    processes: Sequence[Process] | None, job_of: Callable[[int], int | None]
) -> Mapping[int, Sequence[Process]] | None:
    """Processes that belong to a job; None where the device does not show processes."""
    if processes is None:
        return None
    found: dict[int, list[Process]] = {}
    for process in processes:
        job = job_of(process.pid)
        if job is not None:
            found.setdefault(job, []).append(process)
    return found


def whole(reading: Reading, *, detailed: bool) -> Look:
    """The look of a segment that holds the device alone."""
    used = None if reading.memory is None else reading.memory.used
    return _look(reading, used, reading.processes, detailed=detailed, shares=False)


def part(reading: Reading, own: Sequence[Process] | None, *, detailed: bool) -> Look:
    """The look of a segment that shares the device; `own` are its processes, None if unknown."""
    return _look(reading, _process_memory(own, reading.memory), own, detailed=detailed, shares=True)


def _look(
    reading: Reading, used: int | None, own: Sequence[Process] | None, *, detailed: bool, shares: bool
) -> Look:
    energy = reading.energy_mj
    return Look(
        memory_used=used,
        memory_total=None if reading.memory is None else reading.memory.total,
        detailed=detailed,
        memory_util_pct=reading.mem_util_pct,
        # What the whole device draws belongs to no one of those who share it.
        power_w=None if shares else reading.power_w,
        temperature_c=reading.temp_c,
        sm_clock_mhz=reading.sm_clock_mhz,
        energy_j=None if shares or energy is None else energy.value / 1000,
        processes=None if own is None else len(own),
    )


def _process_memory(processes: Sequence[Process] | None, memory: Memory | None) -> int | None:
    """Bytes of these processes together, never more than the device has in use; None if unknown."""
    if processes is None or memory is None:
        return None
    used = [process.used for process in processes]
    known = [u for u in used if u is not None]
    return min(memory.used, sum(known)) if len(known) == len(used) else None
