"""Stranded GPUs, computed by hand and by an independent implementation node by node."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.placement.fragmentation import Scorer, StrandedMeasure, candidates, stranded_mgpu
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.state import Nodes, NodeState
from slurm_gpu.simulate.jobs import ResourceRequest
from tests.placement.building import mixes, node, node_states, requests

ONE, FOUR = ResourceRequest(gpus=1, cpus=8), ResourceRequest(gpus=4, cpus=32)
HALF_AND_HALF = Mix.of([(ONE, 5), (FOUR, 5)])


def stranded(state: NodeState, mix: Mix, measure: StrandedMeasure) -> float:
    """Compute the measure directly from its definition."""
    if not state.up:
        return 0.0
    total = 0.0
    for request, popularity in zip(mix.requests, mix.popularity, strict=True):
        needed = request.share_mgpu or 1000
        good = [
            free
            for free, gpu_type in zip(state.free_mgpu, state.gpu_types, strict=True)
            if free >= needed and request.gpu_type in ("", gpu_type)
        ]
        hosts = (
            len(good) >= max(request.gpus, 1)
            and state.free_cpus >= request.cpus
            and state.free_memory_mib >= request.memory_mib
        )
        useful = float(sum(good)) if hosts else 0.0
        if measure is StrandedMeasure.FED:
            if request.cpus:
                useful = min(useful, state.free_cpus / request.cpus * request.mgpu)
            if request.memory_mib:
                useful = min(useful, state.free_memory_mib / request.memory_mib * request.mgpu)
        total += popularity * (sum(state.free_mgpu) - useful)
    return total


def test_a_broken_node_strands_what_large_jobs_cannot_use() -> None:
    nodes = Nodes.of([node("whole", *[1000] * 4), node("broken", 0, 1000, 1000, 1000), node("full", 0, 0)])
    assert stranded_mgpu(nodes, HALF_AND_HALF).tolist() == [0, 1500, 0]


def test_gpus_without_cpus_are_stranded_for_every_class() -> None:
    no_cpus = node("n", *[1000] * 4, free_cpus=7)
    few_cpus = node("m", *[1000] * 4, free_cpus=8)
    nodes, small = Nodes.of([no_cpus, few_cpus]), Mix.of([(ONE, 1)])
    assert stranded_mgpu(nodes, small, StrandedMeasure.FGD).tolist() == [4000, 0]
    assert stranded_mgpu(nodes, small, StrandedMeasure.FED).tolist() == [4000, 3000]


def test_a_small_job_goes_where_it_strands_least() -> None:
    nodes = Nodes.of([node("whole", *[1000] * 4), node("broken", 0, 1000, 1000, 1000)])
    found = candidates(nodes, ONE, HALF_AND_HALF)
    # On the whole node, the job strands GPUs for half of the mix; on the other, it uses stranded GPUs.
    assert dict(zip(found.node.tolist(), found.increase_mgpu.tolist(), strict=True)) == {0: 1500, 1: -500}


def test_classes_count_by_popularity_and_jobs_for_several_nodes_once_for_each() -> None:
    mix = Mix.of(
        [(ResourceRequest(nodes=3, gpus=4), 1), (ResourceRequest(gpus=1), 1), (ResourceRequest(cpus=4), 96)]
    )
    assert mix.requests == (ResourceRequest(gpus=4), ResourceRequest(gpus=1))
    assert mix.popularity == (0.75, 0.25)
    assert mix.most_popular(0.5).requests == (ResourceRequest(gpus=4),)
    assert mix.most_popular(1.0).requests == mix.requests
    with pytest.raises(ValueError, match="must be 0 or more"):
        Mix.of([(ONE, -1)])


def test_without_jobs_nothing_is_stranded() -> None:
    nodes = Nodes.of([node("n", 1000, 0)])
    assert stranded_mgpu(nodes, Mix.of([])).tolist() == [0]
    assert candidates(nodes, ONE, Mix.of([])).increase_mgpu.tolist() == [0]
    assert not Mix.of([]).most_popular(0.95).requests


@settings(max_examples=60)
@given(node_states(), mixes(), st.sampled_from(StrandedMeasure))
def test_the_measure_matches_its_definition(
    states: list[NodeState], seen: list[tuple[ResourceRequest, int]], measure: StrandedMeasure
) -> None:
    mix = Mix.of(seen)
    expected = [stranded(state, mix, measure) for state in states] if mix.requests else [0.0] * len(states)
    assert stranded_mgpu(Nodes.of(states), mix, measure) == pytest.approx(expected)


@settings(max_examples=60)
@given(node_states(), mixes(), requests(), st.sampled_from(StrandedMeasure))
def test_a_candidate_s_increase_is_that_of_the_next_state_and_all_ways_are_listed(
    states: list[NodeState],
    seen: list[tuple[ResourceRequest, int]],
    request: ResourceRequest,
    measure: StrandedMeasure,
) -> None:
    nodes, mix = Nodes.of(states), Mix.of(seen)
    before = stranded_mgpu(nodes, mix, measure)
    found = candidates(nodes, request, mix, measure)
    least = dict.fromkeys(np.flatnonzero(nodes.fits(request)).tolist(), math.inf)
    for index in least:
        usable = nodes.usable_mgpu(request.gpu_type)[index]
        if request.share_mgpu:
            ways = [(gpu,) for gpu in np.flatnonzero(usable >= request.share_mgpu).tolist()]
        else:
            ways = [tuple(np.flatnonzero(usable == 1000)[: request.gpus].tolist())]
        for devices in ways:
            after = stranded_mgpu(nodes.take(index, request, devices), mix, measure)
            least[index] = min(least[index], float(after[index] - before[index]))
    best = Scorer(mix, measure).best(nodes, request)
    assert set(found.node.tolist()) == set(least)
    for index, increase in least.items():
        assert found.increase_mgpu[found.node == index].min() == pytest.approx(increase, abs=1e-5)
        assert best.increase_mgpu[index] == pytest.approx(increase, abs=1e-5)


@settings(max_examples=30)
@given(node_states(), mixes(), st.lists(st.tuples(requests(), st.integers(0, 5)), max_size=8))
def test_the_cache_of_a_scorer_changes_no_result(
    states: list[NodeState], seen: list[tuple[ResourceRequest, int]], steps: list[tuple[ResourceRequest, int]]
) -> None:
    nodes, mix = Nodes.of(states), Mix.of(seen)
    scorer = Scorer(mix)
    for request, which in steps:
        remembered, fresh = scorer.best(nodes, request), Scorer(mix).best(nodes, request)
        assert (remembered.increase_mgpu == fresh.increase_mgpu).all()
        assert (remembered.device == fresh.device).all()
        fits = np.flatnonzero(np.isfinite(fresh.increase_mgpu)).tolist()
        if fits:
            index = fits[which % len(fits)]
            usable = nodes.usable_mgpu(request.gpu_type)[index]
            whole = tuple(np.flatnonzero(usable == 1000)[: request.gpus].tolist())
            nodes = nodes.take(index, request, (int(fresh.device[index]),) if request.share_mgpu else whole)
        else:
            nodes = Nodes.of(states)  # return to the initial state


def test_a_share_goes_to_the_gpu_that_fewest_others_can_use() -> None:
    nodes = Nodes.of([node("n", 1000, 700, 500)])
    halves = Mix.of([(ResourceRequest(share_mgpu=500), 1), (ONE, 1)])
    assert Scorer(halves).best(nodes, ResourceRequest(share_mgpu=500)).device.tolist() == [2]
    # Jobs of half a GPU cannot use 200 mgpu of the second GPU anyway.
    assert Scorer(halves).best(nodes, ResourceRequest(share_mgpu=200)).device.tolist() == [1]
