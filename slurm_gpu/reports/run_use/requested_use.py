"""Compute how much of its requested GPUs, GPU memory, CPUs and host memory a run used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from slurm_gpu.reports.run_use.device_use import DeviceUse, device_uses
from slurm_gpu.reports.run_use.host_use import HostUse, host_uses
from slurm_gpu.wire import DeviceFacts
from slurm_gpu.wire.answers.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedUse:
    """The use of one resource. None marks a value that is unknown or was not measured, never 0.

    `gpu` and `cpu` are numbers of busy GPUs and CPUs, averaged over the run. `gpu_memory` is the highest
    use of the GPU with the highest share, in MiB. `memory` is the sum of each node's highest use in MiB.
    """

    resource: Literal["gpu", "gpu_memory", "cpu", "memory"]
    used: float | None
    requested: float | None

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return asdict(self)


def requested_uses(run: Run) -> list[RequestedUse]:
    """Return the use of each resource; an empty list if the run has not started or is another user's."""
    if not run.full or not run.has_started:
        return []
    allocated = run.tres_allocated or {}
    n_gpus = run.n_gpus
    busy = None if run.ugpucore is None or n_gpus is None else run.ugpucore / 100 * n_gpus
    used_mib, capacity_mib = _fullest(device_uses(run.devices or ()), run.device_facts or {})
    hosts = all_host_uses(run) or ()
    return [
        RequestedUse(resource="gpu", used=busy, requested=n_gpus),
        RequestedUse(resource="gpu_memory", used=used_mib, requested=capacity_mib),
        RequestedUse(
            resource="cpu", used=_sum(host.cpus_busy for host in hosts), requested=allocated.get("cpu")
        ),
        RequestedUse(
            resource="memory", used=_sum(host.rss_max_mib for host in hosts), requested=allocated.get("mem")
        ),
    ]


def all_host_uses(run: Run) -> Sequence[HostUse] | None:
    """Return the host use on each node of the run; None unless every node has reported it."""
    uses = host_uses(run.hosts or (), run.devices or ())
    return uses if uses and len(uses) == run.n_nodes else None


def _fullest(
    uses: Sequence[DeviceUse], facts: Mapping[str, DeviceFacts]
) -> tuple[float | None, float | None]:
    """Return the highest memory use and the capacity of the GPU with the highest share of both, in MiB."""
    known = [
        (use.mem_max_mib, capacity_mib)
        for use in uses
        if use.mem_max_mib is not None
        and use.device in facts
        and (capacity_mib := facts[use.device].memory_mib)
    ]
    return max(known, key=lambda pair: pair[0] / pair[1], default=(None, None))


def _sum(values: Any) -> float | None:
    """Return the sum; None if there are no values or one is unknown."""
    known = list(values)
    return math.fsum(known) if known and None not in known else None
