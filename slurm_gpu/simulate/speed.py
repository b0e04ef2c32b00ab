"""How fast jobs run that share GPUs: the hook for time-shared GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from slurm_gpu.simulate.state import ModelState


class Speed(Protocol):
    """A pure function: work per second of a job, of which alone it does 1."""

    def of(self, job: int, beside: tuple[int, ...]) -> float:
        """Its speed, above 0, while these others (ascending) hold parts of its GPUs."""
        ...


def sharers(state: ModelState, job: int) -> Iterator[int]:
    """Jobs that hold parts of a running job's GPUs, once for each GPU."""
    allocation = state.running[job]
    if not allocation.request.share_mgpu:
        return
    for node, devices in zip(allocation.nodes, allocation.devices, strict=True):
        mine = set(devices)
        for other, theirs in state.on_node[node].items():
            if other != job and theirs.request.share_mgpu and mine.intersection(theirs.devices_on(node)):
                yield other
