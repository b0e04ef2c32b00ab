"""job_submit.lua gets only zones whose feature all nodes of the zone, and no other nodes, have."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.config.site import Placement, Zone
from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.controller.snapshot.zone_table import ZoneTable, demand_by_scale, table, zone_nodes
from slurm_gpu.placement.zones import JobScale
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.queue import JobPhase

from .fakes import make_job, make_node

ZONES = {"zone1": Zone("n[1-2]", "small"), "zone2": Zone("n[3-4]", "large")}


def cluster(**of_n4: object) -> list[SlurmNode]:
    nodes = [make_node(f"n{n}", features=["a100", "zone1" if n < 3 else "zone2"]) for n in range(1, 4)]
    return [*nodes, make_node("n4", **({"features": ["a100", "zone2"]} | of_n4))]


def made(nodes: list[SlurmNode], mode: str = "enforce") -> ZoneTable | None:
    return table(Placement(mode), zone_nodes(ZONES, nodes), nodes, dict.fromkeys(JobScale, 0))


def error_of(name: str, nodes: list[SlurmNode]) -> str | None:
    return next(zone.error for zone in zone_nodes(ZONES, nodes) if zone.name == name)


def test_the_lines_are_those_of_the_contract() -> None:
    found = made(cluster())
    assert found is not None
    assert list(found.lines()) == [
        "placement enforce medium=1",
        "score zone1 small=700 medium=0 large=0",
        "score zone2 small=0 medium=0 large=700",
        "pool zone1 gpu nodes=2 gpus=4 cpus=32 mib=100000 types=a100:4 features=a100,zone1",
        "pool zone2 gpu nodes=2 gpus=4 cpus=32 mib=100000 types=a100:4 features=a100,zone2",
    ]


def test_a_zone_whose_nodes_lack_its_feature_is_not_used_and_its_nodes_are_in_none() -> None:
    nodes = cluster(features=["a100"])
    found = made(nodes)
    assert error_of("zone2", nodes) == "n4 lacks the feature zone2"
    assert found is not None
    assert list(found.scores) == ["zone1"]
    assert {pool.zone for pool in found.pools} == {"zone1", "-"}


def test_a_feature_that_other_nodes_have_too_would_let_jobs_straddle() -> None:
    nodes = cluster(features=["zone1", "zone2"])
    assert error_of("zone1", nodes) == "n4 outside the zone has the feature zone1 too"
    assert error_of("zone2", nodes) is None


def test_without_a_usable_zone_there_is_no_table() -> None:
    assert made([make_node("n1"), make_node("n3")]) is None


def test_nodes_that_take_no_jobs_count_for_nothing() -> None:
    found = made(cluster(state="idle+drain"))
    assert found is not None
    assert [(pool.zone, pool.nodes) for pool in found.pools if pool.zone == "zone2"] == [("zone2", 1)]
    assert found.most_medium == 1


def test_different_nodes_are_in_different_pools() -> None:
    found = made(cluster(features=["h100", "zone2"], gpus={"H100": 8}, gpus_allocated={"H100": 8}))
    assert found is not None
    kinds = [(pool.types, pool.features, pool.nodes) for pool in found.pools if pool.zone == "zone2"]
    assert kinds == [((("a100", 4),), ("a100", "zone2"), 1), ((("h100", 8),), ("h100", "zone2"), 1)]


def test_only_partitions_that_are_managed_have_pools() -> None:
    nodes = [replace(node, partitions=["gpu", "test"]) for node in cluster()]
    found = table(
        Placement("enforce", partitions=("gpu",)), zone_nodes(ZONES, nodes), nodes, dict.fromkeys(JobScale, 0)
    )
    assert found is not None
    assert {pool.partition for pool in found.pools} == {"gpu"}


def test_names_are_encoded() -> None:
    nodes = [
        make_node("n1", partitions=["g pu"], features=["a,b", "zone1"]),
        make_node("n2", features=["zone1"]),
    ]
    found = made(nodes)
    assert found is not None
    assert any(" g%20pu " in line and line.endswith("features=a%2Cb,zone1") for line in found.lines())


def test_demand_is_what_runs_and_waits_by_the_number_of_nodes() -> None:
    jobs = [
        make_job(1),
        make_job(2, JobPhase.PENDING, n_tasks=3, tres="cpu=8,node=1,gres/gpu=2"),
        make_job(3, n_nodes=2, tres="cpu=8,node=2,gres/gpu=8", nodes="n[1-2]"),
        make_job(4, n_nodes=8, tres="cpu=8,node=8,gres/gpu=32", nodes="n[1-8]"),
        make_job(5, JobPhase.ENDED),
    ]
    assert demand_by_scale(jobs, CountingFacts(), most_medium=2) == {
        JobScale.SMALL: 8000,
        JobScale.MEDIUM: 8000,
        JobScale.LARGE: 32_000,
    }
