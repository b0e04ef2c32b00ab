"""The order of nodes for whichever small job comes next."""

from __future__ import annotations

import numpy as np

from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.order import SmallJobOrder, fullest_first
from slurm_gpu.placement.state import Nodes
from slurm_gpu.simulate.jobs import Request
from tests.placement.building import node

ONE, TWO, FOUR = (Request(gpus=n, cpus=4 * n) for n in (1, 2, 4))


def busy(name: str, n_busy: int, **other: int) -> object:
    return node(name, *[0] * n_busy, *[1000] * (4 - n_busy), free_cpus=32 - 4 * n_busy, **other)


NODES = Nodes.of([busy("n1", 1), busy("n3", 3), busy("n2", 2), busy("n0", 0), busy("n4", 4), busy("m3", 3)])  # type: ignore[misc]


def names(ranks: np.ndarray) -> list[list[str]]:
    return [[NODES.names[i] for i in np.flatnonzero(ranks == rank)] for rank in range(int(ranks.max()) + 1)]


def test_the_fullest_first() -> None:
    assert names(fullest_first(NODES)) == [["n4"], ["n3", "m3"], ["n2"], ["n1"], ["n0"]]


def test_what_strands_least_first_and_full_nodes_last() -> None:
    order = SmallJobOrder(Mix.of([(ONE, 8), (FOUR, 2)]))
    assert names(order.ranks(NODES)) == [["n3", "m3"], ["n2"], ["n1"], ["n0"], ["n4"]]


def test_pairs_stay_whole_where_two_are_asked_for() -> None:
    # The fullest after n3 is n2, but that would lose its pair; of n1's three GPUs one is odd, and nobody asks
    # for all four of n0.
    order = SmallJobOrder(Mix.of([(ONE, 5), (TWO, 5)]))
    assert names(order.ranks(NODES)) == [["n3", "m3"], ["n1"], ["n0"], ["n2"], ["n4"]]


def test_a_mix_without_small_jobs_leaves_the_fullest_first() -> None:
    assert names(SmallJobOrder(Mix.of([(FOUR, 1)])).ranks(NODES)) == [
        ["n4"],
        ["n3", "m3"],
        ["n2"],
        ["n1"],
        ["n0"],
    ]


def test_nodes_that_changed_are_looked_at_again() -> None:
    order = SmallJobOrder(Mix.of([(ONE, 8), (FOUR, 2)]))
    order.ranks(NODES)
    later = NODES.take(NODES.index["n3"], ONE, [3])
    assert (order.ranks(later) == SmallJobOrder(Mix.of([(ONE, 8), (FOUR, 2)])).ranks(later)).all()
    assert order.expected_mgpu(later)[NODES.index["n3"]] == np.inf
