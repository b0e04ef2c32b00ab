"""Untrained nets, and a table to train on."""

from __future__ import annotations

import math

import numpy as np

from slurm_gpu.colocation.learned import dqngpu
from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces
from slurm_gpu.colocation.learned.deeprm import HIDDEN
from slurm_gpu.colocation.learned.images import N_INPUTS, options_of
from slurm_gpu.colocation.learned.net import Net, new_net
from slurm_gpu.colocation.learned.rows import NAMES
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.world import TableWorld, World
from tests.colocation.building import pairs, profile


def any_scorer(seed: int) -> Net:
    return new_net((len(NAMES), 8, 1), np.random.default_rng(seed))


def any_images_net(name: str, seed: int) -> Net:
    return new_net((N_INPUTS, HIDDEN, len(options_of(name))), np.random.default_rng(seed))


def by_price() -> Net:
    """Return a net that chooses the group with the best price and, among equals, with the longest job."""
    weight = np.zeros((len(NAMES), 1), dtype=np.float32)
    weight[NAMES.index("priced")], weight[NAMES.index("longest_of_waiting")] = 1.0, 0.02
    return Net((weight,), (np.zeros(1, dtype=np.float32),))


def light_and_heavy() -> TableWorld:
    """Return two applications that disturb no other, two that disturb each other, and one that runs alone."""
    speeds = [
        [1.00, 0.98, 0.97, 0.95, 0.40],
        [0.98, 1.00, 0.95, 0.90, 0.40],
        [0.96, 0.93, 0.55, 0.50, 0.30],
        [0.94, 0.90, 0.60, 0.55, 0.30],
        [0.55, 0.50, 0.45, 0.40, 0.30],
    ]
    names = ("light", "lighter", "heavy", "heavier", "loner")
    return pairs(speeds, *(profile(name, (100.0 + 40 * at, 1000.0)) for at, name in enumerate(names)))


def beliefs_of(world: World, *, most_together: int = 2, cap: float = math.inf) -> ApplicationPlaces:
    belief = KnownBelief(world, most_together=most_together, cap=cap)
    beliefs = ApplicationPlaces(belief, world.profiles, world.capacity_mib, room=len(world.profiles))
    beliefs.place(range(len(world.profiles)))
    return beliefs


def planner(net: Net, world: World, *, most_together: int = 2, cap: float = math.inf) -> dqngpu.DqnGpu:
    belief = KnownBelief(world, most_together=most_together, cap=cap)
    return dqngpu.DqnGpu(net, belief, world.profiles, world.capacity_mib)
