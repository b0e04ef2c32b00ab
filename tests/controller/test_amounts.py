"""A job counts the same in slurm-gpuctld as in job_submit.lua."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of
from slurm_gpu.slurm.queue import JobPhase

from .fakes import make_job

FACTS = CountingFacts(
    shards_per_gpu=4, partition_gpus={"gpu": 4, "small": 2}, node_types={"n1": "a100", "n2": "a100"}
)


def pending_mgpu(**changes: object) -> int:
    fields: dict[str, object] = {"per_node": "", "tres": "cpu=1,mem=1G,node=1,billing=1", "nodes": ""}
    return amounts_of(make_job(phase=JobPhase.PENDING, **(fields | changes)), FACTS).mgpu


def test_a_running_job_counts_what_it_was_given() -> None:
    amounts = amounts_of(make_job(per_node="gres:gpu:7"), FACTS)
    assert (amounts.mgpu, amounts.cpus, amounts.mib, amounts.nodes) == (2000, 8, 65536, 1)


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.PENDING])
def test_billing_units_are_those_of_slurm(phase: JobPhase) -> None:
    def billed(tres: str, **more: object) -> int:
        fields: dict[str, object] = {"per_node": "", "tres": f"cpu=8,mem=8G,node=1{tres}"}
        return amounts_of(make_job(phase=phase, **(fields | more)), FACTS).billing

    assert (billed(",billing=13"), billed(",billing=8"), billed("")) == (13, 8, 0)
    if phase is JobPhase.PENDING:
        assert billed(",billing=13", n_nodes=3) == 39
        assert billed(",billing=8", n_cpus=32) == 32  # without weights


def test_a_running_job_without_allocated_gpus_counts_its_requested_ones() -> None:
    """slurmctld 22.05 starts such jobs just after a restart."""
    amounts = amounts_of(make_job(per_node="", per_job="gres:gpu:a100:3", tres="cpu=1,mem=48G,node=1"), FACTS)
    assert (amounts.mgpu, amounts.mgpu_by_type) == (3000, {"a100": 3000})


def test_running_gpus_are_of_the_type_of_their_nodes_where_slurm_names_none() -> None:
    assert amounts_of(make_job(), FACTS).mgpu_by_type == {"a100": 2000}
    assert amounts_of(make_job(nodes="n[1,3]"), FACTS).mgpu_by_type == {}
    named = make_job(tres="cpu=1,node=1,gres/gpu=3,gres/gpu:h100=1,gres/gpu:a100=2")
    assert amounts_of(named, FACTS).mgpu_by_type == {"h100": 1000, "a100": 2000}


@pytest.mark.parametrize(
    ("asked", "mgpu"),
    [
        ({"per_job": "gres:gpu:3"}, 3000),
        ({"per_job": "gres:gpu:3", "n_nodes": 4}, 4000),  # from 24.11 on, each node gets a GPU
        ({"per_node": "gres/gpu:a100:2", "n_nodes": 3}, 6000),
        ({"per_node": "gres:shard:3", "n_nodes": 2}, 1500),
        ({"per_node": "gres:gpu:1,gres:shard:2"}, 1500),
        # Slurm's total includes the GPUs of all tasks, but GPUs per socket only for the fewest nodes.
        ({"tres": "cpu=4,node=1,gres/gpu=4"}, 4000),
        ({"tres": "cpu=4,node=1,gres/gpu=4", "n_nodes": 2}, 4000),
        ({"tres": "cpu=4,node=1,gres/gpu=4", "n_nodes": 2, "per_socket": "gres:gpu:2"}, 8000),
        ({"exclusive": True}, 4000),
        ({"exclusive": True, "partition": "small,gpu", "n_nodes": 2}, 4000),
        ({"exclusive": True, "partition": "unknown"}, 0),
        # A request that cannot be parsed counts with Slurm's total.
        ({"per_node": "gres:gpu(,", "tres": "node=1,gres/gpu=2"}, 2000),
        ({}, 0),
    ],
)
def test_a_pending_job_counts_the_most_that_it_may_get(asked: dict[str, object], mgpu: int) -> None:
    assert pending_mgpu(**asked) == mgpu


def test_gpus_of_another_type_in_another_form_come_on_top() -> None:
    both = {"per_job": "gres:gpu:A100:3", "per_node": "gres:gpu:h100:1,gres:gpu:a100:1", "n_nodes": 2}
    amounts = amounts_of(make_job(phase=JobPhase.PENDING, nodes="", tres="cpu=2,node=2", **both), FACTS)
    assert (amounts.mgpu, amounts.mgpu_by_type) == (5000, {"a100": 3000, "h100": 2000})


@pytest.mark.parametrize(
    ("asked", "total", "mgpu", "types"),
    [
        # Output of Slurm 22.05 for pending jobs; Slurm tracked gres/gpu and gres/gpu:a100.
        (
            {"per_node": "gres:gpu:a100:1", "per_task": "gres:gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=1",
            4000,
            {"a100": 1000, "v100": 3000},
        ),
        (
            {"per_job": "gres:gpu:a100:2", "per_task": "gres:gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=2",
            4000,
            {"a100": 2000, "v100": 2000},
        ),
        (
            {"per_node": "gres:gpu:a100:1", "per_task": "gres:gpu:a100:1,gres:gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=2",
            4000,
            {"a100": 2000, "v100": 2000},
        ),
        (
            {"per_node": "gres:gpu:a100:2", "per_task": "gres:gpu:a100:1", "n_nodes": 2},
            "node=2,gres/gpu=4,gres/gpu:a100=4",
            4000,
            {"a100": 4000},
        ),
        ({"per_task": "gres:gpu:v100:1", "n_nodes": 1}, "node=1,gres/gpu=2", 2000, {"v100": 2000}),
        # The total is for one node, but the job gets two nodes.
        (
            {"per_node": "gres:gpu:a100:1", "per_task": "gres:gpu:v100:1", "n_nodes": 2},
            "node=1,gres/gpu=4,gres/gpu:a100=1",
            5000,
            {"a100": 2000, "v100": 3000},
        ),
        # Slurm tracks both types, or neither.
        (
            {"per_node": "gres/gpu:a100:2", "per_task": "gres/gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=2,gres/gpu:v100=2",
            4000,
            {"a100": 2000, "v100": 2000},
        ),
        (
            {"per_node": "gres/gpu:a100:2", "per_task": "gres/gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=4",
            4000,
            {"a100": 2000, "v100": 2000},
        ),
        (
            {"per_node": "gres/gpu:a100:1", "per_task": "gres/gpu:h100:1,gres/gpu:v100:1", "n_nodes": 1},
            "node=1,gres/gpu=5,gres/gpu:a100=1",
            5000,
            {"a100": 1000},
        ),
        # CPUs per task change nothing: the total may be older than the current request.
        (
            {"per_node": "gres/gpu:a100:1", "per_task": "cpu=2", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=4",
            1000,
            {"a100": 1000},
        ),
        (
            {"per_node": "gres/gpu:a100:1", "per_task": "cpu=2,gres/gpu:v100=1", "n_nodes": 1},
            "node=1,gres/gpu=4,gres/gpu:a100=1",
            4000,
            {"a100": 1000, "v100": 3000},
        ),
        # Slurm's total replaces requests that cannot be parsed.
        ({"per_node": "gres:gpu:1", "per_task": "gres:gpu(,"}, "node=1,gres/gpu=4", 4000, {}),
    ],
)
def test_gpus_per_task_with_another_form_follow_from_slurms_total(
    asked: dict[str, object], total: str, mgpu: int, types: dict[str, int]
) -> None:
    job = make_job(phase=JobPhase.PENDING, **{"per_node": "", "nodes": "", "tres": total} | asked)
    amounts = amounts_of(job, FACTS)
    assert (amounts.mgpu, amounts.mgpu_by_type) == (mgpu, types)


def test_a_range_of_nodes_counts_cpus_and_memory_with_its_upper_end() -> None:
    job = make_job(phase=JobPhase.PENDING, n_nodes=3, n_cpus=2, tres="cpu=2,mem=4G,node=1,billing=2")
    amounts = amounts_of(job, FACTS)
    assert (amounts.cpus, amounts.mib, amounts.nodes) == (6, 3 * 4096, 3)


def test_an_exclusive_job_counts_all_cpus_of_its_nodes() -> None:
    facts = CountingFacts(partition_cpus={"gpu": 32})
    assert amounts_of(make_job(phase=JobPhase.PENDING, exclusive=True, n_nodes=2), facts).cpus == 64


def test_in_an_exclusive_partition_every_job_takes_whole_nodes() -> None:
    facts = CountingFacts(partition_gpus={"gpu": 4, "whole": 8}, whole_partitions=frozenset({"whole"}))
    for partition, mgpu in (("whole", 8000), ("gpu", 2000), ("gpu,whole", 2000)):
        assert amounts_of(make_job(phase=JobPhase.PENDING, partition=partition), facts).mgpu == mgpu


def test_untyped_gpus_are_of_the_only_type_that_their_partitions_have() -> None:
    facts = CountingFacts(partition_types={"gpu": frozenset({"a100"}), "both": frozenset({"a100", "v100"})})
    for partition, types in (("gpu", {"a100": 2000}), ("gpu,both", {}), ("gpu,unknown", {})):
        job = make_job(phase=JobPhase.PENDING, partition=partition)
        assert amounts_of(job, facts).mgpu_by_type == types


def test_shards_count_for_nothing_where_no_node_has_any() -> None:
    job = make_job(phase=JobPhase.PENDING, per_node="gres:shard:3", tres="node=1,gres/shard=3")
    assert amounts_of(job, CountingFacts()).mgpu == 0


@given(st.text(), st.text())
def test_no_text_of_a_users_stops_the_counting(request: str, total: str) -> None:
    job = make_job(phase=JobPhase.PENDING, per_job=request, per_node=request, per_task=request, tres=total)
    assert amounts_of(job, FACTS).mgpu >= 0
    assert amounts_of(make_job(tres=total, nodes=request), FACTS).mgpu >= 0


@pytest.mark.parametrize(
    ("asked", "cpus", "mib"),
    [
        # Output of Slurm 22.05 with DefMemPerCPU=1024 and DefMemPerGPU=16384 for pending jobs.
        ({"tres": "cpu=1,mem=1G,node=1", "mib_per_gpu": "gpu:16384"}, 1, 32768),
        (
            {"tres": "cpu=1,mem=12G,node=1", "cpus_per_gpu": "gres:gpu:8", "mib_per_gpu": "gres:gpu:6144"},
            16,
            12288,
        ),
        ({"tres": "cpu=8,mem=4G,node=1", "mib_per_gpu": "gpu:16384"}, 8, 4096),
        ({"tres": "cpu=6,mem=3000M,node=1", "mib_per_gpu": "gpu:16384"}, 6, 3000),
        ({"tres": "cpu=1,mem=100000M,node=1", "mib_per_gpu": "gpu:16384"}, 1, 100_000),
        ({"tres": "cpu=2,mem=2G,node=1", "per_job": ""}, 2, 2048),
    ],
)
def test_a_pending_job_counts_what_it_takes_along_by_the_gpu(
    asked: dict[str, object], cpus: int, mib: int
) -> None:
    fields: dict[str, object] = {"per_job": "gres:gpu:2", "per_node": "", "n_cpus": 1} | asked
    amounts = amounts_of(make_job(phase=JobPhase.PENDING, **fields), replace(FACTS, default_mib_per_cpu=1024))
    assert (amounts.cpus, amounts.mib) == (cpus, mib)
