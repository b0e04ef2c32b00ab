"""Describe the use of a GPU by an application that runs alone, phase by phase."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePhase:
    """A stretch of even use, as fractions of the whole GPU (0 to 1); unknown values are None."""

    seconds: float
    """Duration of the phase if the application runs alone on its GPU."""
    util: float | None = None
    """Fraction of the time in which at least one kernel ran, as in NVML's utilisation."""
    memory_mib: float | None = None
    sm: float | None = None
    """Fraction of the multiprocessors that had work."""
    pcie: float | None = None
    """Fraction of the PCIe link's maximum throughput, both directions combined."""

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds must be more than 0, not {self.seconds}")
        for name in ("util", "sm", "pcie"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value}")
        if self.memory_mib is not None and not self.memory_mib >= 0:
            raise ValueError(f"memory_mib must be 0 or more, not {self.memory_mib}")


@dataclass(frozen=True)
class ApplicationProfile:
    """The profile of one application with one input on one GPU model (table 2 of the DqnGPU thesis)."""

    application: str
    """The name of the application in `/etc/slurm-gpu/applications.yaml`."""
    gpu_model: str
    phases: tuple[ProfilePhase, ...]
    kind: str = ""
    """The kind of application, such as "training" or "molecular dynamics"."""
    input_size: float | None = None
    """The size of the input in the application's own unit, such as batch size or atoms."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Other known parameters, by name."""
    runs: int = 1
    """Number of runs in the profile."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError(f"the profile of {self.application} has no phases")

    @property
    def key(self) -> tuple[str, str, str, float | None, tuple[tuple[str, str], ...]]:
        """Return the application, its input and the GPU model, which identify the profile."""
        return self.application, self.gpu_model, self.kind, self.input_size, self.parameters

    @cached_property
    def seconds(self) -> float:
        """Return the duration of the application when it runs alone on its GPU."""
        return sum(phase.seconds for phase in self.phases)

    @cached_property
    def ends_s(self) -> tuple[float, ...]:
        """Return the ends of the phases, in seconds from the start when running alone."""
        return tuple(accumulate(phase.seconds for phase in self.phases))

    def phase_at(self, done_s: float) -> int:
        """Return the index of the phase after this much work, or of the last phase after the end."""
        return min(bisect_right(self.ends_s, done_s), len(self.phases) - 1)

    def mean(self, name: str) -> float | None:
        """Return the mean of a use over the phases in which it is known; None if it is unknown in all."""
        known = [(getattr(one, name), one.seconds) for one in self.phases if getattr(one, name) is not None]
        return sum(value * seconds for value, seconds in known) / sum(s for _, s in known) if known else None

    def peak(self, name: str) -> float | None:
        """Return the greatest use of any phase; None if it is unknown in all phases."""
        return max((v for phase in self.phases if (v := getattr(phase, name)) is not None), default=None)


def sampled(profile: ApplicationProfile, name: str, width_s: float, n: int) -> NDArray[np.float64]:
    """Return the greatest use in each of n steps of `width_s`: 0 after the end, NaN if unknown."""
    out = np.zeros(n)
    begin_s = 0.0
    for phase, end_s in zip(profile.phases, profile.ends_s, strict=True):
        value = getattr(phase, name)
        first, last = int(begin_s // width_s), int(-(-end_s // width_s))
        if first < n:
            out[first:last] = np.nan if value is None else np.fmax(out[first:last], value)
        begin_s = end_s
    return out


def scaled(phases: Sequence[ProfilePhase], seconds: float) -> tuple[ProfilePhase, ...]:
    """Return the same phases, scaled to this total duration."""
    factor = seconds / sum(phase.seconds for phase in phases)
    return tuple(
        ProfilePhase(
            seconds=one.seconds * factor, util=one.util, memory_mib=one.memory_mib, sm=one.sm, pcie=one.pcie
        )
        for one in phases
    )
