"""Three simulated GPUs, and helpers that query their reader process."""

import time
from collections.abc import Callable
from pathlib import Path

from lab import polling
from slurm_gpu.node.gpu.reading import Reader, ReadRequest, Results

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 0.2
GPUS = ["GPU-a", "GPU-b", "GPU-c"]


def uuids(reader: Reader) -> list[str]:
    return [facts.uuid for facts in reader.devices()]


def read(reader: Reader, *of: str) -> Results:
    return reader.read([ReadRequest(uuid=uuid, detailed=True) for uuid in of or GPUS])


def read_when_ready(reader: Reader) -> tuple[Results, float]:
    """Return the first results that have readings, and the seconds until then."""
    begin = time.monotonic()

    def readings() -> Results | None:
        results = read(reader)
        return results if results.readings else None

    results = polling.wait_for(readings, 10, "a device is read", interval_s=0.01)
    return results, time.monotonic() - begin


def wait_for(met: Callable[[], bool]) -> None:
    polling.wait_for(met, 10, "a condition of the reader process", interval_s=0.01)
