"""Samples of one segment on one device, for tests of its record."""

from typing import Any

from slurm_gpu.node.gpu.reading import DeviceMemory, DeviceProperties, Reading
from slurm_gpu.node.measure.tally import DeviceSample, DeviceTally, SegmentKey
from slurm_gpu.wire import (
    Mean,
    Record,
)

START, WALL = 1000.0, 1_795_000_000.25
GAP = 5.0
TOTAL = 40 << 30
KEY = SegmentKey(
    cluster="lab",
    job_id=7,
    restart=0,
    prolog_s=1_795_000_000,
    node="n1",
    boot_id="b",
    segment="00000000000000aa",
)
FACTS = DeviceProperties(
    uuid="GPU-0",
    index=0,
    memory_bytes=TOTAL,
    power_limit_w=400.0,
    sm_clock_max_mhz=2000.0,
    pcie_bytes_per_s=32e9,
    nvlink_bytes_per_s=300e9,
)


def tally(
    facts: DeviceProperties | None = FACTS, start_s: float = START, wall_s: float = WALL
) -> DeviceTally:
    return DeviceTally(KEY, "GPU-0", start_s, wall_s, facts)


def sample(at_s: float, *, alone: bool = True, processes: int | None = 1, **reading: Any) -> DeviceSample:
    reading.setdefault("memory", DeviceMemory(TOTAL // 4, TOTAL))
    return DeviceSample(
        reading=Reading(at_s=at_s, **reading),
        memory_used=None if reading["memory"] is None else reading["memory"].used,
        processes=processes,
        alone=alone,
        detailed=True,
    )


def seen(
    *samples: DeviceSample, facts: DeviceProperties | None = FACTS, end_s: float | None = None
) -> Record:
    """Return the record of a segment with these samples."""
    one = tally(facts)
    one.end_s = end_s
    for each in samples:
        one.add_sample(each, GAP, GAP)
    return one.record(samples[-1].reading.at_s)


def timeline_of(record: Record, name: str) -> list[float | None]:
    assert record.timeline is not None
    return record.timeline.fractions(name)


def mean(value: Mean | None) -> float:
    assert value is not None
    return value.mean
