"""Adjustable wall clocks of the lab's hosts. The clock of the machine is never set.

With ``Options.own_clocks``, slurm-gpud, hooks and GPUs of a node use the clock of that node; slurm-gpudbd and
the Slurm commands that it runs use the clock of a separate host. lab/nvml/wallclock.c provides these clocks.
All other programs use the machine's clock, since the tests do not cover Slurm under clock steps.

MUNGE rejects clocks that differ by more than five minutes. The lab's MUNGE does not see these clocks, so
tests must respect this limit themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab import nvml
from lab.layout import Layout
from lab.simgpu import creation, world

# The name of slurm-gpudbd's host; other hosts have the names of their nodes.
DATABASE_HOST = "slurm-gpudbd"


def create(layout: Layout) -> None:
    """Build the library, and create the clock of slurm-gpudbd's host; the clocks of nodes exist already."""
    nvml.build_wallclock(layout.lib)
    creation.create(layout.database_world, [])


def environment(layout: Layout, host: str) -> Mapping[str, str]:
    """Return the environment variables that make a process use the clock of a host."""
    return {"LD_PRELOAD": str(layout.lib / nvml.WALLCLOCK), "SIMGPU_WORLD": str(_world(layout, host))}


def step(layout: Layout, host: str, by_s: float) -> None:
    """Set the clock of a host forward, or back."""
    world.World(_world(layout, host)).step_clock(round(by_s * 1e9))


def _world(layout: Layout, host: str) -> Path:
    return layout.database_world if host == DATABASE_HOST else layout.node(host).world
