"""Schedules worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition, Outage
from slurm_gpu.simulate.jobs import Jobs, ResourceRequest
from slurm_gpu.simulate.limits import LimitCounter, Resource
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.outcome import JobTransition
from slurm_gpu.simulate.scheduler import Scheduling
from tests.simulate.building import cluster, job, nodes, run, starts


def test_jobs_run_in_parallel_while_gpus_are_free_and_then_in_sequence() -> None:
    assert starts(cluster(2), job(0), job(0), job(0), job(10)) == [0, 0, 100, 100]


def test_a_later_small_job_runs_before_a_large_one_only_if_it_ends_in_time() -> None:
    # Two of four GPUs are allocated until 100; the large job needs all four, and has them from 100 on.
    first = job(0, gpus=2, run_s=100)
    large = job(1, gpus=4, run_s=50)
    fits = job(2, gpus=2, run_s=90, limit_s=98)
    late = job(3, gpus=2, run_s=90, limit_s=99)
    assert starts(cluster(4), first, large, fits) == [0, 100, 2]
    assert starts(cluster(4), first, large, late) == [0, 100, 150]


def test_backfill_uses_the_time_limit_and_not_the_run_time() -> None:
    # The job ends at 12, but by its time limit it would delay the large job.
    running = job(0, gpus=2, run_s=100)
    assert starts(cluster(4), running, job(1, gpus=4), job(2, gpus=2, run_s=10, limit_s=200)) == [0, 100, 200]


def test_a_job_from_behind_may_outlast_the_reservation_on_what_the_blocked_job_leaves() -> None:
    # The blocked job will take two of n0's four GPUs at 100: two are left over, and a third is not.
    first = job(0, gpus=3, run_s=100)
    blocked = job(1, gpus=2, run_s=100, limit_s=100)
    long = job(2, gpus=1, run_s=1000)
    assert starts(cluster(4), first, blocked, long) == [0, 100, 2]
    assert starts(cluster(4), first, job(1, gpus=4), long) == [0, 100, 200]


def test_without_backfill_no_job_passes_a_blocked_job_of_the_same_partition() -> None:
    strict = Scheduling(backfill=False)
    jobs = job(0, gpus=2, run_s=100), job(1, gpus=4, run_s=50), job(2, gpus=2, run_s=10)
    assert starts(cluster(4), *jobs, scheduling=strict) == [0, 100, 150]


def test_between_two_backfills_only_the_first_of_the_queue_may_start() -> None:
    every_30_s = Scheduling(backfill_every_s=30)
    jobs = job(0, gpus=2, run_s=100), job(1, gpus=4, run_s=50), job(2, gpus=2, run_s=10)
    assert starts(cluster(4), *jobs, scheduling=every_30_s) == [0, 100, 30]


def test_the_next_job_starts_immediately_after_an_early_end() -> None:
    assert starts(cluster(1), job(0, run_s=10, limit_s=1000), job(1)) == [0, 10]


def test_a_job_is_cut_off_at_its_time_limit() -> None:
    outcome = run(cluster(1), job(0, run_s=500, limit_s=60), job(1))
    assert outcome.end_s.tolist() == [60, 160]


def test_nodes_of_a_multi_node_job_start_and_end_together() -> None:
    outcome = run(
        cluster(4, 4, 4), job(0, gpus=4), job(1, gpus=3, n_nodes=2, run_s=20), job(2, gpus=4, n_nodes=3)
    )
    assert outcome.start_s.tolist() == [0, 1, 100]
    assert [event.nodes for event in outcome.log if event.what is JobTransition.START] == [
        (0,),
        (1, 2),
        (0, 1, 2),
    ]


def test_lighter_nodes_are_taken_first_then_the_first() -> None:
    three = tuple(
        ModelNode(name=f"n{i}", gpus=1, cpus=8, memory_mib=1000, weight=weight)
        for i, weight in enumerate((5, 1, 1))
    )
    where = ModelCluster(three, (ModelPartition("gpu", (0, 1, 2)),))
    outcome = run(where, job(0), job(0), job(0))
    assert [event.nodes for event in outcome.log if event.what is JobTransition.START] == [(1,), (2,), (0,)]


def test_cpus_and_memory_count_as_gpus_do() -> None:
    where = ModelCluster(nodes(4, cpus=8, memory_mib=1000), (ModelPartition("gpu", (0,)),))
    assert starts(where, job(0, cpus=6), job(1, cpus=3), job(2, cpus=2)) == [0, 100, 2]
    assert starts(where, job(0, memory_mib=600), job(1, memory_mib=401)) == [0, 100]


def test_shares_fill_a_gpu_before_they_break_another() -> None:
    outcome = run(cluster(2), *(job(0, share_mgpu=500) for _ in range(3)), job(1), job(2, share_mgpu=500))
    devices = [event.devices for event in outcome.log if event.what is JobTransition.START]
    assert devices == [((0,),), ((0,),), ((1,),), ((1,),), ((0,),)]
    assert outcome.start_s.tolist() == [0, 0, 0, 100, 2]


def test_a_job_of_one_gpu_type_waits_for_that_type() -> None:
    two = (
        ModelNode(name="n0", gpus=1, cpus=8, memory_mib=1000, gpu_type="v100"),
        ModelNode(name="n1", gpus=1, cpus=8, memory_mib=1000, gpu_type="a100"),
    )
    where = ModelCluster(two, (ModelPartition("gpu", (0, 1)),))
    assert starts(where, job(0, gpu_type="a100"), job(0, gpu_type="a100"), job(1)) == [0, 100, 1]


def test_larger_priority_goes_first_and_equal_ones_in_the_order_of_submission() -> None:
    queue = job(0), job(1, priority=1), job(2, priority=5), job(3, priority=1)
    assert starts(cluster(1), *queue) == [0, 200, 100, 300]


def test_partitions_do_not_block_each_other_but_where_they_share_nodes() -> None:
    where = ModelCluster(nodes(1, 1), (ModelPartition("a", (0,)), ModelPartition("both", (0, 1))))
    running = job(0, gpus=1, run_s=100)
    pair = job(1, gpus=1, n_nodes=2, partition=1, run_s=10)
    # n1 is free but n0 is not, so both nodes are reserved for the pair from 100 s on.
    assert starts(where, running, pair, job(2, partition=1, run_s=50), job(3, partition=0, run_s=5)) == [
        0,
        100,
        2,
        110,
    ]


def test_a_user_at_a_limit_is_overtaken_and_continues_below_it() -> None:
    two_gpus = (LimitCounter("alice", {Resource.MGPU: 2000}),)
    mine = [job(0, run_s=100, counters=(0,)) for _ in range(3)]
    outcome = run(cluster(8), *mine, job(1), counters=two_gpus)
    assert outcome.start_s.tolist() == [0, 0, 100, 1]
    assert outcome.limited_s.tolist() == [0, 0, 100, 0]


def test_a_job_can_count_against_several_limits() -> None:
    counters = (LimitCounter("alice", {Resource.JOBS: 2}), LimitCounter("vision", {Resource.CPUS: 10}))
    jobs = (
        job(0, cpus=6, counters=(0, 1), run_s=50),
        job(1, cpus=6, counters=(1,), run_s=10),  # 6 + 6 > 10 CPUs of the group
        job(2, cpus=1, counters=(0,), run_s=100),
        job(3, cpus=1, counters=(0, 1), run_s=10),  # alice has two jobs, until the first ends
    )
    assert starts(cluster(8), *jobs, counters=counters) == [0, 50, 2, 50]


def test_a_job_that_exceeds_a_limit_or_the_cluster_never_starts_and_blocks_no_other() -> None:
    limit = (LimitCounter("alice", {Resource.MGPU: 1000}),)
    jobs = job(0, gpus=2, counters=(0,)), job(1, gpus=8), job(2, gpus=4)
    assert starts(cluster(4), *jobs, counters=limit) == [None, None, 2]
    assert starts(cluster(4), *jobs, counters=limit, scheduling=Scheduling(backfill=False)) == [None, None, 2]


def test_a_job_cancelled_while_it_waits_never_starts_or_ends() -> None:
    outcome = run(cluster(1), job(0), job(1, cancel_s=50), job(2, cancel_s=100.5))
    assert outcome.start_s.tolist()[0] == 0
    assert math.isnan(outcome.start_s[1])
    assert math.isnan(outcome.end_s[1])
    assert outcome.start_s[2] == 100
    assert [event.job for event in outcome.log if event.what is JobTransition.CANCEL] == [1]


def test_a_drained_node_finishes_what_runs_and_takes_nothing_new_until_it_is_back() -> None:
    where = cluster(1, 1, outages=(Outage(0, 10, 500),))
    assert starts(where, job(0, run_s=100), job(20), job(30, run_s=400), job(40)) == [0, 20, 120, 500]


def test_the_placement_hook_decides_and_may_let_a_job_wait() -> None:
    class LastNodeOrNone:
        def choose(self, state, request, fitting):  # type: ignore[no-untyped-def]
            return fitting[-1:] if fitting[-1] == 1 else ()

        def devices(self, state, node, request):  # type: ignore[no-untyped-def]
            return (0,)

    outcome = run(cluster(1, 1), job(0), job(1), placement=LastNodeOrNone())
    assert outcome.start_s.tolist() == [0, 100]
    assert {event.nodes for event in outcome.log if event.what is JobTransition.START} == {(1,)}


def test_a_placement_that_returns_allocated_gpus_raises() -> None:
    class AlwaysTheSameGpu:
        def choose(self, state, request, fitting):  # type: ignore[no-untyped-def]
            return (0,)

        def devices(self, state, node, request):  # type: ignore[no-untyped-def]
            return (0,)

    with pytest.raises(ValueError, match="job 1 cannot be allocated GPUs \\[0\\] of node n0"):
        run(cluster(2), job(0), job(0), placement=AlwaysTheSameGpu())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"submit_s": np.array([2.0, 1.0])}, "in the order of submission"),
        ({"run_s": np.array([-1.0, 1.0])}, "limit_s must be positive"),
        ({"priority": np.zeros(3)}, "differ in length"),
    ],
)
def test_columns_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    two = {
        "submit_s": np.array([0.0, 1.0]),
        "run_s": np.ones(2),
        "limit_s": np.ones(2),
        "priority": np.zeros(2),
        "cancel_s": np.full(2, math.inf),
        "request": np.zeros(2, dtype=np.int32),
        "partition": np.zeros(2, dtype=np.int32),
        "counters": np.zeros(2, dtype=np.int32),
        "qos": np.zeros(2, dtype=np.int32),
        "requests": (ResourceRequest(gpus=1),),
    }
    with pytest.raises(ValueError, match=message):
        Jobs(**(two | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", [{"gpus": 1, "share_mgpu": 500}, {"share_mgpu": 1000}, {"nodes": 0}, {"cpus": -1}]
)
def test_requests_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"a (share|request)"):
        ResourceRequest(**bad)  # type: ignore[arg-type]


def test_jobs_that_name_what_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="partition out of range; there are 1"):
        run(cluster(1), job(0, partition=1))
    with pytest.raises(ValueError, match="there are 0 counters"):
        run(cluster(1), job(0, counters=(0,)))
    with pytest.raises(ValueError, match="partition gpu names node 7"):
        ModelCluster(nodes(1), (ModelPartition("gpu", (7,)),))


def test_no_jobs_are_no_error() -> None:
    assert len(simulate(cluster(1), Jobs.of([])).start_s) == 0


def zoned(*zones: str, gpus: int = 4) -> ModelCluster:
    """Return a cluster with one node for each of these zone names."""
    n = len(zones)
    placed = tuple(replace(node, zone=zone) for node, zone in zip(nodes(*[gpus] * n), zones, strict=True))
    return ModelCluster(placed, (ModelPartition("gpu", tuple(range(n))),))


def test_a_job_in_one_zone_waits_for_it_and_no_later_job_delays_it() -> None:
    # One node of each zone is free from 0 on, the other node of zone a from 100 on, that of b from 50 on.
    busy = job(0, gpus=4, run_s=100), job(0, gpus=4, run_s=50)
    pair = job(1, gpus=4, n_nodes=2, run_s=10)
    together = replace(pair, request=replace(pair.request, one_zone=True))
    where = zoned("a", "b", "a", "b")
    assert starts(where, *busy, pair) == [0, 0, 1]
    assert starts(where, *busy, together) == [0, 0, 50]
    # Zone b is reserved for the job at 50: a later long job may use only the free node of zone a.
    long = job(2, gpus=4, run_s=1000)
    assert starts(where, *busy, together, long, long) == [0, 0, 50, 2, 60]


def test_a_job_straddles_zones_once_it_has_waited_long_enough() -> None:
    busy = job(0, gpus=4, run_s=100), job(0, gpus=4, run_s=50)
    pair = job(1, gpus=4, n_nodes=2, run_s=10)
    together = replace(pair, request=replace(pair.request, one_zone=True))
    where = zoned("a", "b", "a", "b")
    assert starts(where, *busy, together, zone_wait_s=30) == [0, 0, 31]
    assert starts(where, *busy, together, zone_wait_s=60) == [0, 0, 50]


def test_a_job_that_fits_no_zone_waits_for_nothing_but_the_bound() -> None:
    three = job(0, gpus=4, n_nodes=3, run_s=10)
    together = replace(three, request=replace(three.request, one_zone=True))
    where = zoned("a", "b", "a", "b")
    assert starts(where, together) == [None]
    assert starts(where, together, zone_wait_s=30) == [30]


def test_a_limit_delays_a_released_job_as_before() -> None:
    counters = (LimitCounter("alice", {Resource.JOBS: 1}),)
    pair = job(1, gpus=4, n_nodes=2, run_s=10, counters=(0,))
    together = replace(pair, request=replace(pair.request, one_zone=True))
    outcome = run(
        zoned("a", "b"),
        job(0, gpus=1, run_s=100, counters=(0,)),
        together,
        counters=counters,
        zone_wait_s=30,
    )
    assert outcome.start_s.tolist() == [0, 100]
    assert outcome.limited_s.tolist() == [0, 99]
