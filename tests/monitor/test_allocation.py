"""A job has as many squares as GPUs in Slurm, at the positions that slurm-gpud reports, if any."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.monitor.cluster.allocation import SquareAllocation, find_allocation, ranges
from slurm_gpu.monitor.cluster.frames import state_frame
from slurm_gpu.monitor.cluster.layout import SquareLayout, make_layout
from slurm_gpu.monitor.cluster.metrics import ALLOCATED, SHARED
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterNode
from slurm_gpu.wire.answers.runs import NodeReport
from tests.monitor.clusters import cluster, job


def node(name: str = "n1", n_gpus: int = 4, **given: Any) -> ClusterNode:
    values: dict[str, Any] = {
        "node": name,
        "state": "mixed",
        "reason": None,
        "in_service": True,
        "partitions": ("gpu",),
        "zone": None,
        "server_type": None,
        "gpus": {"a100": n_gpus},
        "gpus_free": 0,
        "cpus": 8,
        "cpus_allocated": 0,
        "memory_mib": 1,
        "memory_allocated_mib": 0,
        "holders": (),
    }
    return ClusterNode(**{**values, **given})


def holder(job_id: int, *gpus: int, shared: tuple[int, ...] = ()) -> ClusterAllocation:
    return ClusterAllocation(job_id=job_id, gpus=gpus, shared_gpus=shared)


def report(name: str = "n1", minors: tuple[int, ...] = (0, 1, 2, 3)) -> NodeReport:
    """Return a node's devices in the driver's order, which differs from the order of minor numbers."""
    devices = tuple(
        DeviceFacts(uuid=f"{name}-{index}", node=name, at_s=1, index=index, minor=minor)
        for index, minor in enumerate(minors)
    )
    return NodeReport(node=name, last_seen_s=1.0, version="0.2.0", devices=devices)


def live(*jobs: tuple[int, ...], name: str = "n1") -> dict[str, Live]:
    devices = {f"{name}-{index}": LiveDevice(jobs=some) for index, some in enumerate(jobs)}
    return {name: Live(at_s=1.0, devices=devices)}


def layout(*nodes: ClusterNode, reports: tuple[NodeReport, ...] = ()) -> SquareLayout:
    return make_layout("lab", nodes, reports, {})


def allocation_of(
    one: ClusterNode, values: dict[str, Live], reports: tuple[NodeReport, ...]
) -> SquareAllocation:
    return find_allocation(cluster([one]), values, layout(one, reports=reports))


def test_the_device_that_slurm_gpud_names_counts_and_not_slurms_position():
    found = allocation_of(node(holders=(holder(7, 0),)), live((), (), (7,), ()), (report(),))
    assert found.whole == {7: [2]}


def test_without_device_names_slurm_s_positions_follow_minor_numbers():
    found = allocation_of(node(holders=(holder(7, 0),)), {}, (report(minors=(3, 2, 1, 0)),))
    assert found.whole == {7: [3]}


def test_a_square_that_another_surely_has_is_not_taken_for_a_job_that_just_began():
    one = node(holders=(holder(7, 0), holder(8, 1)))
    assert allocation_of(one, live((8,), (), (), ()), (report(),)).whole == {8: [0], 7: [1]}


def test_a_job_that_slurm_no_longer_has_occupies_no_square():
    assert allocation_of(node(), live((9,), (), (), ()), (report(),)).jobs_at == {}


def test_a_square_that_two_jobs_share_is_both_theirs():
    one = node(holders=(holder(7, shared=(1,)), holder(8, shared=(1,))))
    found = allocation_of(one, live((), (7, 8), (), ()), (report(),))
    assert (found.shared, found.is_shared(1)) == ({7: [1], 8: [1]}, True)


def test_a_square_of_which_one_job_has_all_shards_is_not_shared():
    one = node(holders=(holder(7, shared=(1, 2)),))
    place = layout(one)
    for n_gpus, state in ((2.0, ALLOCATED), (0.5, SHARED), (None, SHARED)):
        found = find_allocation(cluster([one], [job(7, n_gpus=n_gpus)]), {}, place)
        assert state_frame(place, [one], {}, found)[1:3] == bytes([state, state])


def test_without_any_slurm_gpud_the_squares_are_slurms():
    one = node(holders=(holder(7, 2, 3),))
    place = layout(one)
    found = find_allocation(cluster([one]), {}, place)
    assert found.whole == {7: [2, 3]}
    assert state_frame(place, [one], {}, found) == bytes([4, 4, 1, 1])


def test_state_shows_out_of_service_unless_a_job_is_still_there():
    one = node(state="drain", in_service=False, holders=(holder(7, 0),))
    place = layout(one, reports=(report(),))
    found = find_allocation(cluster([one]), live((7,), (), (), ()), place)
    assert state_frame(place, [one], live((7,), (), (), ()), found) == bytes([1, 3, 3, 3])


def test_a_gpu_unknown_to_slurm_is_not_available():
    one = node(n_gpus=2, gpus_free=1, holders=(holder(7, 0),))
    values = live((), (), (7,), ())  # slurm-gpud reports four GPUs, the third with the job
    place = layout(one, reports=(report(minors=(3, 2, 1, 0)),))
    found = find_allocation(cluster([one]), values, place)
    assert state_frame(place, [one], values, found) == bytes([3, 3, 1, 0])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ClusterNode, dict[str, Live]]:
    """Return a node whose GPUs are divided among jobs; slurm-gpud reports some of them, in its own order."""
    n_gpus = draw(st.integers(1, 8))
    order = draw(st.permutations(range(n_gpus)))
    cuts = sorted(draw(st.sets(st.integers(1, n_gpus), max_size=4)))
    begins = [0, *cuts]
    holders = [
        holder(job, *order[first:last])
        for job, (first, last) in enumerate(zip(begins, cuts, strict=False), 100)
        if first < last
    ]
    truth = draw(st.permutations(range(n_gpus)))
    at = {truth[place]: job.job_id for job in holders for place in job.gpus}
    known = draw(st.sets(st.sampled_from(range(n_gpus))))
    jobs = [(at[index],) if index in at and index in known else () for index in range(n_gpus)]
    return node(n_gpus=n_gpus, holders=tuple(holders)), live(*jobs)


@given(worlds())
def test_each_job_has_its_number_of_squares_and_no_square_two_jobs(
    world: tuple[ClusterNode, dict[str, Live]],
):
    one, values = world
    n_gpus = one.gpus["a100"]
    found = allocation_of(one, values, (report(minors=tuple(range(n_gpus))),))
    assert {job: len(squares) for job, squares in found.whole.items()} == {
        item.job_id: len(item.gpus) for item in one.holders
    }
    every = [square for squares in found.whole.values() for square in squares]
    assert len(every) == len(set(every))
    for index, device in enumerate(values["n1"].devices.values()):
        for job_id in device.jobs:
            assert index in found.whole[job_id]


@given(st.sets(st.integers(0, 50)))
def test_ranges_are_the_squares_again(squares: set[int]):
    as_ranges = ranges(sorted(squares))
    assert {square for first, last in as_ranges for square in range(first, last + 1)} == squares
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(as_ranges))
