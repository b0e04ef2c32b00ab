"""The preference of each placement rule, and properties of all rules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement_rules import BestFit, FewestCPUs, Random
from slurm_gpu.placement.choice import (
    LeastFragmentation,
    MostAllocated,
    NodeShare,
    PlacementRule,
)
from slurm_gpu.placement.fragmentation import StrandedMeasure
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.state import Nodes, NodeState, RunningUntil
from slurm_gpu.placement.weighted import NodeWeights, NodeWeightsByType
from slurm_gpu.simulate.jobs import ResourceRequest
from tests.placement.building import node, node_states, requests

MIX = Mix.of(
    [
        (ResourceRequest(gpus=1, cpus=4), 6),
        (ResourceRequest(gpus=4, cpus=16), 3),
        (ResourceRequest(share_mgpu=250), 1),
    ]
)
RULES: list[PlacementRule] = [
    Random(1),
    BestFit(),
    MostAllocated(),
    LeastFragmentation(MIX),
    LeastFragmentation(MIX, StrandedMeasure.FGD),
    LeastFragmentation(Mix.of([])),
    FewestCPUs(),
    NodeWeights(None),
    NodeWeights(MIX, every=3),
    NodeWeightsByType(MIX, every=3),
]
BUSY_1_3_2_0 = Nodes.of(
    [
        node("n1", 0, 1000, 1000, 1000, free_cpus=24),
        node("n2", 0, 0, 0, 1000, free_cpus=8),
        node("n3", 0, 0, 1000, 1000, free_cpus=16),
        node("n4", 1000, 1000, 1000, 1000),
    ]
)


def chosen(rule: PlacementRule, where: Nodes, **request: int) -> list[str]:
    return [where.names[place.node] for place in rule.choose(where, ResourceRequest(**request))]


def test_a_small_job_goes_to_the_fullest_fitting_node_and_by_slurm_alone_to_the_first() -> None:
    for rule in (BestFit(), MostAllocated(), LeastFragmentation(MIX)):
        assert chosen(rule, BUSY_1_3_2_0, gpus=1, cpus=4) == ["n2"], rule
        assert chosen(rule, BUSY_1_3_2_0, gpus=2, cpus=4) == ["n3"], rule
    for rule in (NodeWeights(None), NodeWeights(MIX)):
        assert chosen(rule, BUSY_1_3_2_0, gpus=1, cpus=4) == ["n2"]
        assert chosen(rule, BUSY_1_3_2_0, gpus=2, cpus=4) == ["n3"]
        assert chosen(rule, BUSY_1_3_2_0, gpus=4, cpus=4) == ["n4"]
    # By FGD's measure all nodes except the whole one are equal, and FGD does not specify how to break ties.
    assert chosen(LeastFragmentation(MIX, StrandedMeasure.FGD), BUSY_1_3_2_0, gpus=1, cpus=4) == ["n1"]


def test_a_job_for_several_nodes_gets_those_that_strand_least() -> None:
    assert sorted(chosen(LeastFragmentation(MIX), BUSY_1_3_2_0, nodes=2, gpus=1, cpus=4)) == ["n2", "n3"]
    assert chosen(LeastFragmentation(MIX), BUSY_1_3_2_0, nodes=2, gpus=4, cpus=4) == []


def test_a_hungry_job_leaves_the_node_alone_whose_gpus_need_the_last_cpus() -> None:
    # n1 is fuller, but its two free GPUs need its last eight CPUs.
    nodes = Nodes.of([node("n1", 0, 0, 1000, 1000, free_cpus=8), node("n2", 0, 1000, 1000, 1000)])
    assert chosen(MostAllocated(), nodes, gpus=1, cpus=8) == ["n1"]
    assert chosen(LeastFragmentation(MIX), nodes, gpus=1, cpus=8) == ["n2"]


def test_without_weights_slurm_takes_the_node_with_the_fewest_cpus_left() -> None:
    nodes = Nodes.of(
        [node("n1", *[1000] * 4, free_cpus=9), node("n2", 0, 0, 0, 1000, free_cpus=8), node("n3", 1000)]
    )
    assert chosen(FewestCPUs(), nodes, gpus=1, cpus=4) == ["n2"]
    assert chosen(FewestCPUs(), nodes, gpus=1, cpus=9) == ["n1"]
    assert chosen(NodeWeights(None), nodes, gpus=1, cpus=9) == [
        "n1"
    ]  # its cores are for one GPU, at their share


def test_weights_follow_what_happened_only_once_they_are_set_again() -> None:
    rule = NodeWeights(None, every=2)
    nodes = BUSY_1_3_2_0
    for expected in ("n2", "n3"):  # the first job fills n2
        (place,) = rule.choose(nodes, ResourceRequest(gpus=1, cpus=4))
        assert nodes.names[place.node] == expected
        nodes = nodes.take(place.node, ResourceRequest(gpus=1, cpus=4), place.devices)
    # n3 now has one GPU left and is still the fullest node.
    assert chosen(rule, nodes, gpus=1, cpus=4) == ["n3"]


def test_any_node_can_be_chosen_at_random_and_a_seed_repeats_the_choice() -> None:
    def picks(seed: int) -> list[tuple[NodeShare, ...]]:
        rule = Random(seed)
        return [rule.choose(BUSY_1_3_2_0, ResourceRequest(gpus=1)) for _ in range(60)]

    assert picks(3) == picks(3) != picks(4)
    assert {place.node for (place,) in picks(3)} == {0, 1, 2, 3}
    assert {place.devices for (place,) in picks(3) if place.node == 3} == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=30)
@given(states=node_states(), request_=requests(st.integers(1, 3)), data=st.data())
def test_a_fitting_job_is_placed_on_distinct_allowed_nodes(
    rule: PlacementRule, states: list[NodeState], request_: ResourceRequest, data: st.DataObject
) -> None:
    nodes = Nodes.of(states)
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes))))
    room = nodes.fits(request_) & among
    places = rule.choose(nodes, request_, among)
    assert len(places) == (request_.nodes if room.sum() >= request_.nodes else 0)
    assert len({place.node for place in places}) == len(places)
    for place in places:
        assert room[place.node]
        nodes = nodes.take(place.node, request_, place.devices)  # raises if it does not fit


def test_whole_last_breaks_into_a_whole_node_last() -> None:
    """Few jobs need a whole node, but many fit on the other: the score alone would use the whole node."""
    mix = Mix.of([(ResourceRequest(gpus=1), 6), (ResourceRequest(gpus=2), 6), (ResourceRequest(gpus=4), 1)])
    nodes = Nodes.of([node("whole", 1000, 1000, 1000, 1000), node("half", 0, 0, 1000, 1000)])
    one, pair, four = ResourceRequest(gpus=1), ResourceRequest(gpus=1, nodes=2), ResourceRequest(gpus=4)

    def chosen(request: ResourceRequest, among: Nodes, *, whole_last: bool) -> list[int]:
        rule = LeastFragmentation(mix, whole_last=whole_last)
        return sorted(place.node for place in rule.choose(among, request))

    assert chosen(one, nodes, whole_last=False) == [0]
    assert chosen(one, nodes, whole_last=True) == [1]
    assert chosen(pair, nodes, whole_last=True) == [0, 1]  # no other node fits
    assert chosen(four, nodes, whole_last=True) == [0]
    assert chosen(one, nodes.take(1, ResourceRequest(gpus=2), (2, 3)), whole_last=True) == [0]


def hours_until_whole(*hours: float) -> Nodes:
    """Return nodes with one of four GPUs in use, by jobs with this many hours left."""
    nodes = Nodes.of([node(f"n{i}", 0, 1000, 1000, 1000) for i in range(len(hours))])
    until_s = 3600 * np.array(hours)
    return dataclasses.replace(nodes, running=RunningUntil(0.0, until_s, np.ones(len(hours), dtype=np.int64)))


def test_weights_fill_the_node_first_that_will_be_whole_last() -> None:
    nodes = hours_until_whole(2, 30, 0.5)
    (place,) = NodeWeights(None).choose(nodes, ResourceRequest(gpus=1))
    assert place.node == 1
    (place,) = NodeWeights(None, timed=False).choose(nodes, ResourceRequest(gpus=1))
    assert place.node == 0
    # Time passes, and the reported remaining times of jobs change.
    weights = NodeWeights(None)
    weights.choose(nodes, ResourceRequest(gpus=1))
    assert nodes.running is not None
    later = dataclasses.replace(nodes.running, now_s=3600.0, until_s=3600 * np.array([40.0, 30, 1.5]))
    (place,) = weights.choose(dataclasses.replace(nodes, running=later), ResourceRequest(gpus=1))
    assert place.node == 0
