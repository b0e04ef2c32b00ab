"""The order of nodes for an unknown next job."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.placement.fragmentation import stranded_mgpu
from slurm_gpu.placement.mix import Mix, coarse
from slurm_gpu.placement.order import MOST_CLASSES, FreeCapacity, NodeKind, NodeOrder, Stake
from slurm_gpu.placement.state import Nodes, NodeState
from slurm_gpu.simulate.jobs import ResourceRequest
from tests.placement.building import mixes, requests

KIND = NodeKind(("a100",) * 4, 32, 64_000)
ONE, TWO, FOUR = (ResourceRequest(gpus=n, cpus=4 * n) for n in (1, 2, 4))
# Number of jobs seen, large enough that the assumed job counts for little.
MANY = 1e6


def free(n_free: int, cpus: int | None = None, memory_mib: int = 64_000) -> FreeCapacity:
    """Return `n_free` free GPUs, by default with their share of cores."""
    return FreeCapacity(
        (0,) * (4 - n_free) + (1000,) * n_free, 8 * n_free if cpus is None else cpus, memory_mib
    )


def left(order: NodeOrder, *rooms: FreeCapacity) -> list[float]:
    return [order.gpus_left(order.stake(KIND, one)) for one in rooms]


def order(*seen: tuple[ResourceRequest, float], n_seen: float = MANY) -> NodeOrder:
    return NodeOrder(Mix.of(seen), n_seen, {KIND: 4})


def test_the_fullest_of_equal_nodes_comes_first() -> None:
    for mix in ((ONE, 1.0),), ((ONE, 8.0), (FOUR, 2.0)), ((ONE, 5.0), (TWO, 5.0)), ((FOUR, 1.0),):
        assert left(order(*mix), *map(free, range(5))) == [0, 1, 2, 3, 4]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from((1, 2, 3, 4)), st.integers(1, 9)), min_size=1, max_size=4))
def test_the_fullest_comes_first_for_any_mix_on_nodes_of_four_gpus(seen: list[tuple[int, int]]) -> None:
    found = left(
        order(*((ResourceRequest(gpus=n, cpus=4 * n), times) for n, times in seen)),
        *(free(n, cpus=32) for n in range(4)),  # with all four free it is whole and therefore last
    )
    assert found == sorted(found)
    assert found[0] == 0.0
    assert min(found[1:]) > 0.0


def test_gpus_whose_cores_are_gone_come_before_fuller_nodes_that_others_can_use() -> None:
    # Jobs use half a node's cores for one GPU. Three GPUs with 15 cores are useless for these jobs; one last
    # GPU with 24 cores is useful.
    hungry = order((ResourceRequest(gpus=1, cpus=16), 9), (ResourceRequest(gpus=1, cpus=1), 1))
    starved, fuller, fresh = left(hungry, free(3, cpus=15), free(1, cpus=24), free(2, cpus=30))
    assert starved < fuller < fresh


def test_memory_counts_as_cores_do() -> None:
    hungry = order(
        (ResourceRequest(gpus=1, cpus=1, memory_mib=32_000), 9), (ResourceRequest(gpus=1, cpus=1), 1)
    )
    starved, fuller = left(hungry, free(3, memory_mib=28_000), free(1, memory_mib=40_000))
    assert starved < fuller


def test_cores_that_no_job_needs_cost_a_node_nothing() -> None:
    modest = order((ResourceRequest(gpus=1, cpus=1), 1))
    assert [round(one) for one in left(modest, free(3, cpus=6), free(2, cpus=30))] == [3, 2]


def test_on_large_nodes_gpus_for_common_requests_are_kept_together() -> None:
    # Two in five request four GPUs: nodes with five free GPUs are used before those with four.
    kind = NodeKind(("",) * 8, 64, 0)
    eight = NodeOrder(
        Mix.of([(ResourceRequest(gpus=1, cpus=4), 55), (ResourceRequest(gpus=4, cpus=16), 45)]),
        MANY,
        {kind: 4},
    )
    stakes = [
        eight.gpus_left(eight.stake(kind, FreeCapacity((0,) * (8 - n) + (1000,) * n, 8 * n, 0)))
        for n in (3, 4, 5, 6)
    ]
    assert sorted(stakes) == [stakes[0], stakes[2], stakes[1], stakes[3]]


def test_a_node_that_no_job_of_the_mix_fits_is_full() -> None:
    assert left(order((ONE, 1)), free(3, cpus=3), free(0, cpus=32)) == [0, 0]
    assert left(order((ONE, 1)), free(3, cpus=4)) > [0]


def test_until_jobs_were_seen_a_gpu_with_its_share_is_what_counts() -> None:
    empty = NodeOrder(Mix.of([]), 0, {KIND: 1})
    assert left(empty, *map(free, range(5))) == [0, 1, 2, 3, 4]
    assert left(empty, free(3, cpus=16)) == left(empty, free(2))
    # A single job of four GPUs does not make three GPUs worthless, but a thousand such jobs do.
    few, many = (order((FOUR, 1), n_seen=n).stake(KIND, free(3)).useful for n in (1, 1000))
    assert many < 0.2 < few


def test_less_useful_whole_nodes_are_used_first() -> None:
    large, poor, small = NodeKind(("",) * 8, 96, 0), NodeKind(("",) * 2, 12, 0), NodeKind(("",) * 2, 96, 0)
    found = NodeOrder(Mix.of([(ResourceRequest(gpus=1, cpus=11), 1)]), MANY, {large: 5, poor: 1, small: 1})
    assert [found.whole_rank(kind) for kind in (poor, small, large)] == [0, 1, 2]
    assert found.n_whole_ranks == 3
    alike = {NodeKind(("",) * n, 8 * n, 0): 1 for n in range(1, 9)}
    ranks = NodeOrder(Mix.of([(ResourceRequest(gpus=1, cpus=4), 1)]), MANY, alike)
    assert ranks.n_whole_ranks == 4
    assert [ranks.whole_rank(kind) for kind in alike] == sorted(ranks.whole_rank(kind) for kind in alike)


def test_jobs_for_another_type_do_not_affect_a_node() -> None:
    other = NodeKind(("v100",) * 4, 32, 64_000)
    typed = NodeOrder(
        Mix.of(
            [
                (ResourceRequest(gpus=1, cpus=4, gpu_type="a100"), 9),
                (ResourceRequest(gpus=4, gpu_type="v100"), 1),
            ]
        ),
        MANY,
        {KIND: 4, other: 4},
    )
    assert typed.stake(KIND, free(3)).useful == pytest.approx(3)
    assert typed.stake(other, free(3)).useful < 0.2


@settings(max_examples=60)
@given(mixes(), st.data())
def test_useful_gpus_are_those_that_are_not_stranded(
    seen: list[tuple[ResourceRequest, int]], data: st.DataObject
) -> None:
    """Compare with `fragmentation` on arrays, for the jobs that the empty node fits and the assumed job."""
    types = tuple(sorted(data.draw(st.lists(st.sampled_from(("a100", "v100")), min_size=1, max_size=4))))
    kind = NodeKind(types, 16, 100)
    free_mgpu = tuple(data.draw(st.sampled_from((0, 250, 500, 1000))) for _ in types)
    found = FreeCapacity(free_mgpu, data.draw(st.integers(0, 16)), data.draw(st.integers(0, 100)))
    mix = Mix.of((coarse(request), times) for request, times in seen)
    n_seen = data.draw(st.sampled_from((1, 3, 1000)))
    stake = NodeOrder(mix, n_seen, {kind: 1}).stake(kind, found)
    empty = Nodes.of([state(kind, FreeCapacity((1000,) * len(types), 16, 100))])
    could = [
        (request, times)
        for request, times in zip(mix.requests, mix.popularity, strict=True)
        if empty.fits(request).any()
    ]
    prior = max(0.05, 5 / (5 + n_seen)) if could else 1.0
    share = ResourceRequest(gpus=1, cpus=16 // len(types), memory_mib=100 // len(types))
    judged = Mix.of(
        [*((one, (1 - prior) * n / sum(n for _, n in could)) for one, n in could), (share, prior)]
    )
    nodes = Nodes.of([state(kind, found)])
    free = sum(free_mgpu)
    assert stake.useful * 1000 == pytest.approx(free - stranded_mgpu(nodes, judged)[0], abs=0.01)
    assert stake.strands == pytest.approx(expected_increase(nodes, judged), abs=1e-5)
    assert stake.fits == any(nodes.fits(request).any() for request in judged.requests)


def state(kind: NodeKind, found: FreeCapacity) -> NodeState:
    return NodeState(
        name="n",
        gpu_types=kind.gpu_types,
        free_mgpu=found.free_mgpu,
        cpus=kind.cpus,
        free_cpus=found.cpus,
        memory_mib=kind.memory_mib,
        free_memory_mib=found.memory_mib,
    )


def expected_increase(nodes: Nodes, mix: Mix) -> float | None:
    """Return the GPUs that the next small job strands on the fullest GPU on which it fits."""
    total = weight = 0.0
    for request, popularity in zip(mix.requests, mix.popularity, strict=True):
        if request.mgpu <= 1000 and nodes.fits(request).any():
            usable = nodes.usable_mgpu(request.gpu_type)[0]
            enough = [(int(mgpu), device) for device, mgpu in enumerate(usable) if mgpu >= request.mgpu]
            after = nodes.take(0, request, [min(enough)[1]])
            total += popularity * float(stranded_mgpu(after, mix)[0] - stranded_mgpu(nodes, mix)[0])
            weight += popularity
    return total / weight / 1000 if weight else None


@settings(max_examples=60)
@given(mixes(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 32)), max_size=6), st.floats(0, 1e6))
def test_every_stake_has_its_place_and_less_left_is_never_worth_more_gpus_than_there_are(
    seen: list[tuple[ResourceRequest, int]], rooms: list[tuple[int, int]], n_seen: float
) -> None:
    found = NodeOrder(Mix.of(seen), n_seen, {KIND: 1})
    for n_free, cpus in rooms:
        one = found.stake(KIND, free(n_free, cpus))
        assert -1e-6 <= one.useful <= n_free + 1e-6
        assert math.isfinite(one.place)
        assert 0 <= found.gpus_left(one) <= 4
        assert (found.gpus_left(one) == 0) == (not one.fits)


def test_equal_free_resources_are_computed_once_and_a_long_mix_is_shortened() -> None:
    long = order(*((ResourceRequest(gpus=1, cpus=n), 1) for n in range(1, 33)))
    assert len(long.mix.requests) <= MOST_CLASSES
    first: Stake = long.stake(KIND, free(2))
    assert long.stake(KIND, free(2)) is first


def test_a_node_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        order((ONE, 1)).stake(NodeKind(("",), 1, 1), FreeCapacity((1000,), 1, 1))


@given(requests())
def test_a_coarse_request_is_at_most_slightly_smaller(request_: ResourceRequest) -> None:
    found = coarse(request_)
    assert (found.gpus, found.share_mgpu, found.gpu_type) == (
        request_.gpus,
        request_.share_mgpu,
        request_.gpu_type,
    )
    for ours, asked in ((found.cpus, request_.cpus), (found.memory_mib, request_.memory_mib)):
        assert ours <= asked <= ours * 1.125


SMALL, LARGE = NodeKind(("t4",) * 2, 8, 64_000), NodeKind(("a100",) * 8, 128, 512_000)
GROUPS = {"t4": {SMALL: 4}, "a100": {LARGE: 2}}


def ranking(request: ResourceRequest, *seen: tuple[ResourceRequest, float]) -> list[str]:
    return NodeOrder(Mix.of(seen), MANY, {SMALL: 4, LARGE: 2}).ranked(request, GROUPS)


def test_a_job_whose_cores_would_strand_gpus_of_one_type_uses_the_other_type_first() -> None:
    modest, hungry = ResourceRequest(gpus=1, cpus=4), ResourceRequest(gpus=1, cpus=8)
    assert ranking(modest, (modest, 9), (hungry, 1)) == ["t4", "a100"]
    assert ranking(hungry, (modest, 9), (hungry, 1)) == ["a100", "t4"]


def test_types_on_which_a_job_has_no_room_come_last() -> None:
    four = ResourceRequest(gpus=4, cpus=4)
    assert ranking(four, (ONE, 9), (four, 1)) == ["a100", "t4"]
    typed = ResourceRequest(gpus=1, cpus=8, gpu_type="t4")
    assert ranking(typed, (ONE, 9)) == ["t4", "a100"]


@given(mixes(), requests())
def test_every_group_is_ranked_once(
    seen: list[tuple[ResourceRequest, int]], request: ResourceRequest
) -> None:
    assert sorted(ranking(request, *seen)) == sorted(GROUPS)
