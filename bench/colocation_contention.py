"""A model of interference: the slowdown of applications that take turns on one GPU.

Without MPS, kernels of different processes never run at the same time, however few multiprocessors they use.
They compete for the GPU's time and the PCIe link. Up to a knee, an application gets the capacity that others
leave free. If the total demand D exceeds the knee, an application with demand d takes 1 + d·(D - knee) times
as long. In addition, each turn of a co-runner has costs that are not part of any recorded use: cold caches,
and kernels that wait to be launched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.colocation.profiles.profile import ApplicationProfile

TIME_KNEE = 0.9
LINK_KNEE = 0.7


class TurnTaking:
    """A world.World. `refill` is the slowdown of each application per unit of the co-runners' use.

    Raise ValueError with the name of the application if a phase of its profile lacks util or pcie.
    """

    def __init__(
        self, profiles: Sequence[ApplicationProfile], refill: Sequence[float], capacity_mib: float
    ) -> None:
        self.profiles, self.refill, self.capacity_mib = tuple(profiles), tuple(refill), capacity_mib
        self._uses = [
            [(_known(one, phase.util, "util"), _known(one, phase.pcie, "pcie")) for phase in one.phases]
            for one in profiles
        ]
        self._speeds: dict[tuple[tuple[int, int], ...], tuple[float, ...]] = {}

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        """See World."""
        known = self._speeds.get(running)
        if known is None:
            known = self._speeds[running] = self._contend(running)
        return known

    def _contend(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        if len(running) == 1:
            return (1.0,)
        uses = [self._uses[application][phase] for application, phase in running]
        time, link = (sum(use[at] for use in uses) for at in (0, 1))
        speeds = [
            1
            / (
                1
                + util * max(time - TIME_KNEE, 0.0)
                + pcie * max(link - LINK_KNEE, 0.0)
                + self.refill[application] * (time - util)
            )
            for (util, pcie), (application, _) in zip(uses, running, strict=True)
        ]
        # Neither resource can be used above its capacity.
        most = max(sum(use[at] * speed for use, speed in zip(uses, speeds, strict=True)) for at in (0, 1))
        return tuple(speed / max(most, 1.0) for speed in speeds)


def level(value: float, low: float, high: float) -> int:
    """Return one of five classes of equal width, as in figure 3 of the DqnGPU thesis: 1 to 5."""
    return max(1, min(5, math.ceil(5 * (value - low) / (high - low))))


def _known(profile: ApplicationProfile, value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"the profile of {profile.application} has a phase without {name}")
    return value
