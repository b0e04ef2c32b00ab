"""Define GPU models, and convert a profile from one model to another by a rule of thumb."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase

# An application that takes at least this share of a GPU's memory is assumed to take all that is available, as
# frameworks with a memory pool do.
_ALL_OF_IT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """The relevant properties of a GPU model; unknown properties are None."""

    name: str
    multiprocessors: int | None = None
    clock_mhz: float | None = None
    memory_gb_s: float | None = None
    memory_mib: float | None = None
    pcie_gb_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("multiprocessors", "clock_mhz", "memory_gb_s", "memory_mib", "pcie_gb_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{self.name}: {name} must be more than 0, not {value}")


def transferred(profile: ApplicationProfile, there: GpuModel, here: GpuModel) -> ApplicationProfile:
    """Convert a profile from the GPU model `there` to the GPU model `here` by a rule of thumb.

    While kernels run (the fraction `util` of the time), their speed scales with two ratios: multiprocessors
    times clock, and memory bandwidth. The geometric mean of both ratios is used, or the known ratio if only
    one is known. All other time remains the same, as do the number of active SMs and the bytes over PCIe.
    Memory use remains the same; if it was nearly all of the old GPU's memory, it becomes the same share of
    the new GPU's memory. If no property is known, only the name of the model changes.
    """
    return replace(
        profile,
        gpu_model=here.name,
        phases=tuple(_phase(phase, there, here) for phase in profile.phases),
    )


def faster(there: GpuModel, here: GpuModel) -> float:
    """Return the expected speed of kernels on the model `here`, relative to `there`."""
    cores = _ratio(_compute(there), _compute(here))
    bandwidth = _ratio(there.memory_gb_s, here.memory_gb_s)
    known = [ratio for ratio in (cores, bandwidth) if ratio is not None]
    return math.prod(known) ** (1 / len(known)) if known else 1.0


def _phase(phase: ProfilePhase, there: GpuModel, here: GpuModel) -> ProfilePhase:
    # If the utilisation is unknown, kernels are assumed to run all the time.
    util = 1.0 if phase.util is None else phase.util
    busy = util / faster(there, here)
    time = busy + 1 - util
    if time <= 0:
        return phase
    sms = _ratio(there.multiprocessors, here.multiprocessors) or 1.0
    link = _ratio(there.pcie_gb_s, here.pcie_gb_s) or 1.0
    # While kernels run, as many SMs are active as on the old GPU.
    sm = None if phase.sm is None else _part(phase.sm * (busy / util if util > 0 else 1.0) / time / sms)
    return ProfilePhase(
        seconds=phase.seconds * time,
        util=None if phase.util is None else _part(busy / time),
        memory_mib=_memory(phase.memory_mib, there.memory_mib, here.memory_mib),
        sm=sm,
        pcie=None if phase.pcie is None else _part(phase.pcie / time / link),
    )


def _memory(mib: float | None, there_mib: float | None, here_mib: float | None) -> float | None:
    if mib is None or there_mib is None or here_mib is None or mib < _ALL_OF_IT * there_mib:
        return mib
    return mib * here_mib / there_mib


def _compute(card: GpuModel) -> float | None:
    if card.multiprocessors is None or card.clock_mhz is None:
        return None
    return card.multiprocessors * card.clock_mhz


def _ratio(there: float | None, here: float | None) -> float | None:
    return None if there is None or here is None else here / there


def _part(value: float) -> float:
    return min(max(value, 0.0), 1.0)
