"""job_submit.lua gets an order of features only where it excludes no node of a partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_gpu.config.site import Placement
from slurm_gpu.controller.snapshot.feature_table import FeatureTable, feature_table
from slurm_gpu.controller.snapshot.zone_table import ZoneTable, table
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.order import NodeKind, NodeOrder
from slurm_gpu.placement.zones import JobScale
from slurm_gpu.simulate.request import ResourceRequest
from slurm_gpu.slurm.client import SlurmNode

from .fakes import make_node

PLACEMENT = Placement("enforce", features=("t4", "a100"))
MODEST, HUNGRY = (ResourceRequest(gpus=1, cpus=cpus, memory_mib=1024) for cpus in (4, 8))
TYPED = ResourceRequest(gpus=1, cpus=4, gpu_type="a100")


def node(name: str, kind: str, **other: Any) -> SlurmNode:
    size = {"t4": {"gpus": {"T4": 2}, "cpus": 8}, "a100": {"gpus": {"A100": 8}, "cpus": 128}}[kind]
    return make_node(name, **({"features": [kind], "gpus_allocated": {}} | size | other))


def order_of(kinds: Mapping[NodeKind, int]) -> NodeOrder:
    return NodeOrder(Mix.of([(MODEST, 9), (HUNGRY, 1), (TYPED, 1)]), 1000.0, kinds)


def made(*nodes: SlurmNode) -> FeatureTable | None:
    return feature_table(PLACEMENT, nodes, order_of)


CLUSTER = node("n1", "t4"), node("n2", "a100"), make_node("cpu1", gpus={}, gpus_allocated={}, features=[])


def test_the_lines_are_those_of_the_contract() -> None:
    found = made(*CLUSTER)
    assert found is not None
    assert list(found.lines()) == ["features gpu", "order 1000 4 1024 t4,a100", "order 1000 8 1024 a100,t4"]


def test_features_need_no_zones() -> None:
    found = table(PLACEMENT, [], CLUSTER, dict.fromkeys(JobScale, 0), made(*CLUSTER))
    assert isinstance(found, ZoneTable)
    assert list(found.lines())[:2] == ["placement enforce medium=1", "features gpu"]


def test_a_node_without_a_feature_or_with_two_excludes_its_partitions_even_if_it_is_drained() -> None:
    for features in [], ["t4", "a100"]:
        other = node("n3", "t4", features=features, state="idle+drain", partitions=["gpu", "long"])
        assert made(*CLUSTER, other) is None
        also = [node("n4", "t4", partitions=["test"]), node("n5", "a100", partitions=["test"])]
        found = made(*CLUSTER, other, *also)
        assert found is not None
        assert found.partitions == ("test",)


def test_there_is_no_order_of_one_type_or_before_any_job() -> None:
    assert made(node("n1", "t4"), node("n2", "t4")) is None
    assert feature_table(PLACEMENT, CLUSTER, lambda kinds: None) is None
    assert feature_table(Placement("enforce"), CLUSTER, order_of) is None
