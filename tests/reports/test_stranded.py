"""Compare stranded GPUs with counts by hand."""

import numpy as np

from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Category
from slurm_gpu.reports.occupancy import OccupancySpans, distribute, occupancy


def node(name: str = "n1", gpus: int = 4, cpus: int = 32, mib: int = 320, up: bool = True) -> Capacity:
    """100 s of one node."""
    return Capacity(
        node=Category.of([name]),
        server_type=Category.of(["a100"]),
        zone=Category.of(["east"]),
        from_s=np.array([0.0]),
        to_s=np.array([100.0]),
        mgpu=np.array([1000 * gpus]),
        cpus=np.array([cpus]),
        memory_mib=np.array([mib]),
        up=np.array([up]),
        assumed_to_s=None,
        until_s=100,
    )


def occupied(
    capacity: Capacity, *runs: tuple[str, float, float, float, float, float]
) -> dict[str, list[int]]:
    """Return the GPU·s of each kind; a run is (nodes, from, to, GPUs, CPUs, MiB)."""
    nodes, *amounts = zip(*runs, strict=True) if runs else ((), (), (), (), (), ())
    from_s, to_s, gpus, cpus, mib = (np.array(values, np.float64) for values in amounts)
    found = occupancy(capacity, distribute(Category.of(nodes), from_s, to_s, 1000 * gpus, cpus, mib))
    return sums(found)


def sums(found: OccupancySpans) -> dict[str, list[int]]:
    seconds = found.to_s - found.from_s
    return {
        kind: int((getattr(found, kind) * seconds).sum()) / 1000
        for kind in ("allocated", "stranded", "free", "out")
    }


def test_without_jobs_all_is_free() -> None:
    assert occupied(node()) == {"allocated": 0, "stranded": 0, "free": 400, "out": 0}


def test_gpus_without_cpus_are_stranded() -> None:
    """Test a job that leaves three GPUs and 8 CPUs free for 50 s; others need 8 CPUs per GPU, so one fits."""
    typical = [("n1", 60, 70, 1, 8, 10)] * 3 + [("n1", 80, 90, 1, 8, 10)] * 3
    greedy = ("n1", 0, 50, 1, 24, 10)
    found = occupied(node(), greedy, *typical)
    assert found == {"allocated": 50 + 60, "stranded": 100, "free": 400 - 110 - 100, "out": 0}


def test_gpus_without_memory_are_stranded() -> None:
    found = occupied(node(), ("n1", 0, 50, 0, 1, 320), ("n1", 60, 70, 1, 8, 80))
    assert found == {"allocated": 10, "stranded": 200, "free": 190, "out": 0}


def test_gpus_of_a_drained_node_are_out_of_service_and_not_stranded() -> None:
    found = occupied(node(up=False), ("n1", 0, 50, 1, 32, 320))
    assert found == {"allocated": 50, "stranded": 0, "free": 0, "out": 350}


def test_a_part_of_a_gpu_leaves_the_rest_free() -> None:
    found = occupied(node(gpus=1), ("n1", 0, 100, 0.25, 2, 10))
    assert found == {"allocated": 25, "stranded": 0, "free": 75, "out": 0}


def test_a_job_on_several_nodes_has_its_amounts_evenly_on_each() -> None:
    found = occupied(node(gpus=4), ("n[1-2]", 0, 100, 4, 16, 20))
    # n2 is unknown: only its allocated GPUs count.
    assert found == {"allocated": 400, "stranded": 0, "free": 200, "out": 0}


def test_nodes_without_gpus_are_left_out() -> None:
    assert occupied(node(gpus=0), ("n1", 0, 100, 0, 8, 10)) == {
        "allocated": 0,
        "stranded": 0,
        "free": 0,
        "out": 0,
    }
