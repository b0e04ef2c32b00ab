"""Wall clocks of the lab's hosts that can be set, each on its own. Nobody sets the machine's.

With ``Options.own_clocks`` a node's slurm-gpud, hooks and GPUs have the clock of that node, and slurm-gpudbd
(with the commands of Slurm that it runs) has that of a host of its own: a library (lab/nvml/wallclock.c)
shows them the machine's clock as it was set for them. All else has the machine's: what Slurm does where a
clock is set is not what is tested, and jobs go by their schedules.

MUNGE lets in nobody whose clock is off by more than five minutes. The lab's does not notice, so that it is up
to the tests to set no clock off by more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab import nvml
from lab.layout import Layout
from lab.simgpu import creation, world

DATABASE_HOST = "slurm-gpudbd"
"""The host's name here; the others have those of their nodes."""


def create(layout: Layout) -> None:
    """Build the library, and make what tells of the clock of slurm-gpudbd's host; the nodes have theirs."""
    nvml.build_wallclock(layout.lib)
    creation.create(layout.database_world, [])


def environment(layout: Layout, host: str) -> Mapping[str, str]:
    """Return what a process of that host has in its environment."""
    return {"LD_PRELOAD": str(layout.lib / nvml.WALLCLOCK), "SIMGPU_WORLD": str(_world(layout, host))}


def step(layout: Layout, host: str, by_s: float) -> None:
    """Set the clock of a host forward, or back."""
    world.World(_world(layout, host)).step_clock(round(by_s * 1e9))


def _world(layout: Layout, host: str) -> Path:
    return layout.database_world if host == DATABASE_HOST else layout.node(host).world
