"""Test the free GPUs of nodes, and the order of the nodes' jobs."""

import dataclasses

import pytest

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import occupancy
from tests.slurm.recorded import recorded_client


@pytest.fixture(scope="module")
def nodes() -> list[SlurmNode]:
    return list(recorded_client().nodes())


@pytest.fixture(scope="module")
def jobs() -> list[QueuedJob]:
    return list(recorded_client().jobs())


def _n3(nodes: list[SlurmNode], **changes: object) -> SlurmNode:
    return dataclasses.replace(next(node for node in nodes if node.name == "n3"), **changes)


def test_a_gpu_without_any_allocation_is_free(nodes: list[SlurmNode], jobs: list[QueuedJob]):
    free = {entry.node.name: (entry.gpus_free, entry.shards_free) for entry in occupancy(nodes, jobs)}
    assert free == {"n1": (0, 0), "n2": (1, 4), "n3": (2, 8), "n4": (0, 0)}


@pytest.mark.parametrize(
    ("state", "in_service"),
    [
        ("idle", True),
        ("mixed+planned", True),
        ("allocated", True),
        ("idle+cloud+powered_down", True),
        ("idle+drain", False),
        ("mixed+drain", False),
        ("down+not_responding", False),
        ("unknown", False),
        ("idle+powering_down", False),
        ("idle+maint+reserved", False),
        ("idle+reboot_requested", False),
    ],
)
def test_nothing_is_free_on_a_node_that_takes_no_jobs(nodes: list[SlurmNode], state: str, in_service: bool):
    (entry,) = occupancy([_n3(nodes, state=state, gpus_allocated={"v100": 0}, shards_allocated=0)], [])
    assert (entry.in_service, entry.gpus_free) == (in_service, 4 if in_service else 0)


def test_jobs_are_sorted_by_their_end_and_those_without_end_are_last(
    nodes: list[SlurmNode], jobs: list[QueuedJob]
):
    base = next(job for job in jobs if job.name == "shards")
    there = [
        dataclasses.replace(base, job_id=n, end_s=end) for n, end in ((1, None), (2, 900), (3, 100), (4, 0))
    ]
    (entry,) = occupancy([_n3(nodes)], there)
    assert [holder.job.job_id for holder in entry.holders] == [4, 3, 2, 1]


def test_pending_and_ended_jobs_have_no_gpus(nodes: list[SlurmNode], jobs: list[QueuedJob]):
    base = next(job for job in jobs if job.name == "shards")
    gone = [dataclasses.replace(base, state=state) for state in ("COMPLETED", "PENDING", "FAILED")]
    (entry,) = occupancy([_n3(nodes)], gone)
    assert entry.holders == []
