"""The state of a cluster determines which nodes fit a request, and releasing undoes allocating."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.placement.node import gpus_by_type
from slurm_gpu.placement.state import Nodes, NodeState
from slurm_gpu.simulate.jobs import ResourceRequest
from tests.placement.building import node


def fitting(nodes: Nodes, **request: object) -> list[str]:
    return [nodes.names[index] for index in np.flatnonzero(nodes.fits(ResourceRequest(**request)))]  # type: ignore[arg-type]


CLUSTER = Nodes.of(
    [
        node("full", 0, 0),
        node("half", 1000, 500, zone="z1"),
        node("whole", 1000, 1000, 1000, 1000, zone="z2"),
        node("nocpus", 1000, 1000, free_cpus=2),
        node("down", 1000, 1000, up=False),
        node("old", 1000, 1000, gpu_type="v100"),
        node("bare"),
    ]
)


def test_a_job_fits_where_gpus_cpus_and_memory_are_free_on_one_node_that_takes_jobs() -> None:
    assert fitting(CLUSTER, gpus=1, cpus=4) == ["half", "whole", "old"]
    assert fitting(CLUSTER, gpus=2, cpus=1) == ["whole", "nocpus", "old"]
    assert fitting(CLUSTER, gpus=3, cpus=33) == []
    assert fitting(CLUSTER, gpus=1, memory_mib=64001) == []
    assert fitting(CLUSTER, cpus=4) == ["full", "half", "whole", "old", "bare"]


def test_a_share_needs_that_much_of_one_gpu() -> None:
    parts = Nodes.of([node("n", 400, 300), node("m", 0, 600)])
    assert fitting(parts, share_mgpu=600) == ["m"]
    assert fitting(parts, share_mgpu=400) == ["n", "m"]
    assert fitting(parts, gpus=1) == []


def test_a_gpu_type_is_requested_by_name() -> None:
    assert fitting(CLUSTER, gpus=1, gpu_type="v100") == ["old"]
    assert fitting(CLUSTER, gpus=1, gpu_type="h100") == []
    mixed = Nodes.of(
        [
            NodeState(
                name="n",
                gpu_types=("a100", "v100", "v100"),
                free_mgpu=(1000, 0, 1000),
                cpus=8,
                free_cpus=8,
                memory_mib=1,
                free_memory_mib=1,
            )
        ]
    )
    assert fitting(mixed, gpus=1, gpu_type="v100") == ["n"]
    assert fitting(mixed, gpus=2, gpu_type="v100") == []
    assert fitting(mixed, gpus=2) == ["n"]


def test_names_and_gpus() -> None:
    assert CLUSTER.n_gpus.tolist() == [2, 2, 4, 2, 2, 2, 0]
    assert CLUSTER.free_gpus.tolist() == [0, 1, 4, 2, 2, 2, 0]


def test_a_cluster_without_nodes_is_one() -> None:
    assert fitting(Nodes.of([]), gpus=1) == []


def test_sums_by_type_become_gpus_with_shards_on_the_fewest() -> None:
    types, free = gpus_by_type({"v100": 2, "a100": 3}, {"a100": 1}, shared_mgpu=1250)
    assert types == ("a100", "a100", "a100", "v100", "v100")
    assert free == (0, 0, 750, 1000, 1000)
    assert gpus_by_type({"a100": 2}, {"a100": 3}, shared_mgpu=500) == (("a100", "a100"), (0, 0))
    assert gpus_by_type({}, {}) == ((), ())


def test_impossible_states_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="node n: free CPUs or memory out of range"):
        node("n", 1000, free_cpus=33)
    with pytest.raises(ValueError, match="node n: free part of a GPU"):
        node("n", 1001)
    with pytest.raises(ValueError, match="duplicate node n"):
        Nodes.of([node("n"), node("n")])
    with pytest.raises(ValueError, match="node half has no room"):
        CLUSTER.take(1, ResourceRequest(gpus=1), [1])
    with pytest.raises(ValueError, match="node half cannot have allocated"):
        CLUSTER.give_back(1, ResourceRequest(gpus=1), [1])
    with pytest.raises(ValueError, match="needs 2 different GPUs"):
        CLUSTER.take(2, ResourceRequest(gpus=2), [0, 0])
    with pytest.raises(ValueError, match="has no GPUs"):
        CLUSTER.take(1, ResourceRequest(gpus=1), [2])


@given(st.data())
def test_released_resources_are_free_and_earlier_states_never_change(data: st.DataObject) -> None:
    request = data.draw(
        st.sampled_from(
            [ResourceRequest(gpus=1, cpus=3), ResourceRequest(share_mgpu=250), ResourceRequest(cpus=2)]
        )
    )
    fit = np.flatnonzero(CLUSTER.fits(request)).tolist()
    index = data.draw(st.sampled_from(fit))
    needed = 1000 if request.gpus else request.share_mgpu
    devices = [int(np.flatnonzero(CLUSTER.free_mgpu[index] >= needed)[0])] if request.mgpu else []
    before = CLUSTER.free_mgpu.copy()
    taken = CLUSTER.take(index, request, devices)
    assert (CLUSTER.free_mgpu == before).all()
    assert taken.free_mgpu.sum() == before.sum() - request.mgpu
    again = taken.give_back(index, request, devices)
    for name in ("free_mgpu", "free_cpus", "free_memory_mib"):
        assert (getattr(again, name) == getattr(CLUSTER, name)).all()
    with pytest.raises(ValueError, match="read-only"):
        taken.free_mgpu[0, 0] = 1
