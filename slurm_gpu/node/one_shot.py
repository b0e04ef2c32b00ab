"""`slurm-gpud --once`: take one sample of all GPUs and print it as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.errors import OutsideError
from slurm_gpu.node.gpu.reader_process import START_DEADLINE_S, ReaderProcess
from slurm_gpu.node.gpu.reading import ReadRequest
from slurm_gpu.node.live import CachingReader, LatestReading, live_device
from slurm_gpu.node.process.cgroup import job_in_cgroup

_HEADER = ("GPU", "UUID", "NAME", "UTIL", "MEMORY", "POWER", "PROCESSES", "JOBS")
_RING_US = 2_000_000


def sample_all(seen: CachingReader, clock: Clock) -> None:
    """Take a detailed sample of all devices."""
    after_us = round(clock.wall() * 1e6) - _RING_US
    requests = [
        ReadRequest(uuid=facts.uuid, detailed=True, processes=True, ring_after_us=after_us)
        for facts in seen.facts
    ]
    seen.read_extra(requests)


def observer_summary(clock: Clock) -> str:
    """Return the table for a node on which another slurm-gpud is running.

    The table shows only jobs that have processes on a GPU.
    """
    reader = ReaderProcess(clock, start_wait_s=START_DEADLINE_S)
    try:
        seen = CachingReader(reader)
        seen.devices()
        sample_all(seen, clock)
        now_s = clock.monotonic()
        return summary(
            seen, {facts.uuid: _jobs_on(seen.of(facts.uuid, now_s)) for facts in seen.facts}, now_s
        )
    finally:
        reader.close()


def _jobs_on(seen: LatestReading | None) -> Sequence[int]:
    detail = None if seen is None else seen.detail
    processes = () if detail is None or detail.processes is None else detail.processes
    jobs = {job for process in processes if (job := _job_of(process.pid)) is not None}
    return sorted(jobs)


def _job_of(pid: int) -> int | None:
    try:
        job = job_in_cgroup(Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace"))
    except OSError:  # the process ended
        return None
    return None if job is None else job.job_id


def summary(seen: CachingReader, jobs_by_device: Mapping[str, Sequence[int]], now_s: float) -> str:
    """Return a table of the devices, with a dash for missing values; raise OutsideError if there are none."""
    if not seen.facts:
        raise OutsideError("no GPU answers")
    rows: list[Sequence[str]] = [_HEADER]
    for facts in seen.facts:
        last = live_device(seen.of(facts.uuid, now_s), jobs_by_device.get(facts.uuid, ()), now_s)
        total_mib = None if facts.memory_bytes is None else facts.memory_bytes / 2**20
        rows.append(
            (
                str(facts.index),
                facts.uuid,
                facts.name or "-",
                _shown(last.util_pct, "{:.0f}%"),
                f"{_shown(last.mem_used_mib, '{:.0f}')}/{_shown(total_mib, '{:.0f}')} MiB",
                _shown(last.power_w, "{:.0f} W"),
                _shown(last.processes, "{:.0f}"),
                " ".join(map(str, last.jobs)) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
