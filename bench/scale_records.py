"""Create records like those of slurm-gpud, for jobs of several lengths; shipments are built from them.

The records come from slurm-gpud's own code with simulated A100s and a clock that the benchmark advances.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.nvml import build
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from tests.node.simulated import SimulatedMachine

MINUTE_S = 60
LENGTHS: Mapping[int, float] = {
    1 * MINUTE_S: 0.20,
    6 * MINUTE_S: 0.25,
    20 * MINUTE_S: 0.25,
    60 * MINUTE_S: 0.15,
    130 * MINUTE_S: 0.15,
}
"""The fraction of jobs by duration in seconds.

The longest also represents longer jobs, since its record has the maximum length.
"""
_HOST = {
    "cpu_s": 12345.67,
    "rss_max_mib": 123456.5,
    "read_bytes": 123456789012,
    "write_bytes": 12345678901,
    "net_rx_bytes": 123456789012,
    "net_tx_bytes": 12345678901,
    "app": "PyTorch",
    "app_field": "machine learning",
    "app_params": {"framework": "pytorch"},
    "container": True,
}
GPUS = 4
MEMORY_LEVELS = 5
"""A job keeps its memory for a long time, while its computation changes constantly."""
_MEMORY_MIB = 81_920.0
_PHASE_S = 7.0
_PAUSE_S = 30.0
PERIOD_S, FIRST_SHIPPED_S = 300, 10
"""The ages at which a job is shipped: soon after its start, then every five minutes."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The records of each GPU `seconds` after the start of a job."""

    at_s: float
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The items of one node for one job: a record of each GPU and the host record.

    `stages` are the growing versions of these records; the last version is `records`.
    """

    seconds: int
    stages: tuple[Stage, ...]
    host: Mapping[str, Any]

    @property
    def records(self) -> tuple[Mapping[str, Any], ...]:
        """Return the final records."""
        return self.stages[-1].records


def patterns(seed: int = 1) -> list[Pattern]:
    """Return one pattern for each of LENGTHS."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="slurm-gpu-bench-") as directory:
        gpus = [GpuSpec(f"GPU-{n:08x}-4e5f-6789-abcd-ef0123456789", minor=n) for n in range(GPUS)]
        machine = SimulatedMachine(Path(directory), gpus, build(Path(directory) / "lib"))
        machine.start()
        try:
            return [_pattern(machine, 1000 + n, seconds, dice) for n, seconds in enumerate(LENGTHS)]
        finally:
            machine.close()


def _pattern(machine: SimulatedMachine, job_id: int, seconds: int, dice: random.Random) -> Pattern:
    now_ns = machine.clock.at_ns(machine.clock.now_s)
    for gpu in range(GPUS):
        n_points = round(seconds / max(_PHASE_S, seconds / 500))
        memory_mib = [dice.uniform(0.2, 0.9) * _MEMORY_MIB for _ in range(MEMORY_LEVELS)]
        points = [
            Point(
                now_ns + round(n * seconds / n_points * 1e9),
                dice.uniform(0, 100),
                memory_mib[n * MEMORY_LEVELS // n_points],
            )
            for n in range(n_points)
        ]
        machine.work(job_id, 0, gpu, points)
    positions = ",".join(map(str, range(GPUS)))
    machine.hook("prolog", job_id, positions)
    began_s, stages = machine.clock.now_s, []
    for at_s in (FIRST_SHIPPED_S, *range(PERIOD_S, seconds, PERIOD_S)):
        machine.run_until(began_s + at_s)
        stages.append(Stage(at_s, _spooled_records(machine, job_id)))
    machine.run_until(began_s + seconds)
    machine.hook("epilog", job_id, positions)
    machine.run(_PAUSE_S)
    stages.append(Stage(seconds, _spooled_records(machine, job_id)))
    records = stages[-1].records
    assert all(record["final"] for record in records)
    return Pattern(seconds, tuple(stages), {**_identity(records[0]), **_HOST})


def _spooled_records(machine: SimulatedMachine, job_id: int) -> tuple[Mapping[str, Any], ...]:
    """Return a job's records as in the spool, in the order of its GPUs."""
    assert machine.spool is not None
    waiting = machine.spool.queue.waiting(1000, set(machine.spool.queue.waiting_keys()))
    records = [item.wire for item in waiting if item.kind == "records" and item.wire["job_id"] == job_id]
    assert len(records) == GPUS, "each GPU has one record"
    return tuple(sorted(records, key=lambda record: str(record["device"])))


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    names = "cluster", "job_id", "restart", "prolog_s", "node", "boot_id", "segment", "seq", "final"
    return {name: record[name] for name in (*names, "first_s", "last_s", "uptime_s")}


if __name__ == "__main__":
    for pattern in patterns():
        sizes = [len(json.dumps(record, separators=(",", ":"))) for record in pattern.records]
        print(f"{pattern.seconds:>6} s: {sizes} bytes of JSON; host {len(json.dumps(pattern.host))}")
