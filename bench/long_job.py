"""Measure the size of a shipment for one GPU of a job that has run for hours with a varying load.

The record of such a GPU has the maximum length: every percent in the histograms, the whole timeline, and
every field of the newest GPUs. The node uses a clock that the benchmark advances.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from lab.nvml import build
from lab.simgpu.load import Point
from lab.simgpu.specs import hopper
from slurm_gpu.node.shipping.shipment import OutgoingShipment
from tests.node.simulated import SimulatedMachine

JOB_ID = 12345678
HOURS = 2.2
POINTS = 500
MEMORY_MIB = 75_000


def shipped_bytes(seed: int = 1) -> int:
    """Return the size of a compressed shipment with only that record."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="slurm-gpu-bench-") as directory:
        gpu = hopper("GPU-0a1b2c3d-4e5f-6789-abcd-ef0123456789")
        machine = SimulatedMachine(Path(directory), [gpu], build(Path(directory) / "lib"))
        machine.start()
        seconds = HOURS * 3600
        now_ns, step_ns = machine.clock.at_ns(machine.clock.now_s), round(seconds * 1e9 / (POINTS - 1))
        points = [
            Point(now_ns + n * step_ns, dice.uniform(0, 100), dice.uniform(0, MEMORY_MIB))
            for n in range(POINTS)
        ]
        machine.work(JOB_ID, 0, 0, points)
        machine.hook("prolog", JOB_ID, "0")
        machine.run(seconds)
        assert machine.spool is not None
        waiting = machine.spool.queue.waiting(100, set(machine.spool.queue.waiting_keys()))
        records = [item for item in waiting if item.kind == "records"]
        body = OutgoingShipment(node="gpu-node-17", boot_id=machine.clock.boot_id(), items=records).body()
        machine.close()
    return len(body)
