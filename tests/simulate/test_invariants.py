"""Properties of every simulation, checked by an independent replay of its log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import Jobs, ModelJob, ResourceRequest
from slurm_gpu.simulate.limits import LimitCounter, Resource
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.outcome import JobTransition, ModelOutcome
from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.scheduler import Scheduling
from tests.simulate.auditing import LogAudit, moments

COUNTERS = (
    LimitCounter("alice", {Resource.MGPU: 3000, Resource.CPUS: 8}),
    LimitCounter("bob", {Resource.JOBS: 2}),
)
OWNER_FIRST = Preemption({"owner": frozenset({"loan"})})
SCHEDULINGS = (
    Scheduling(),
    Scheduling(backfill=False),
    Scheduling(backfill_every_s=7),
    Scheduling(depth=2),
)


@st.composite
def clusters(draw: st.DrawFn, n_partitions: int = 2) -> ModelCluster:
    nodes = tuple(
        ModelNode(
            name=f"n{i}",
            gpus=draw(st.integers(0, 4)),
            cpus=draw(st.integers(1, 8)),
            memory_mib=draw(st.sampled_from((500, 1000))),
            gpu_type=draw(st.sampled_from(("a100", "v100"))),
            weight=draw(st.integers(1, 2)),
            zone=draw(st.sampled_from(("", "z"))),
        )
        for i in range(draw(st.integers(1, 4)))
    )
    some = st.sets(st.integers(0, len(nodes) - 1), min_size=1)
    rest = [ModelPartition(f"p{i}", tuple(sorted(draw(some)))) for i in range(1, n_partitions)]
    return ModelCluster(nodes, (ModelPartition("p0", tuple(range(len(nodes)))), *rest))


def requests() -> st.SearchStrategy[ResourceRequest]:
    common = {
        "nodes": st.sampled_from((1, 1, 1, 2, 3)),
        "cpus": st.integers(0, 4),
        "memory_mib": st.sampled_from((0, 250, 500)),
        "one_zone": st.sampled_from((False, False, True)),
        "gpu_type": st.sampled_from(("", "", "a100")),
    }
    whole = st.builds(ResourceRequest, gpus=st.integers(0, 4), **common)
    return st.one_of(
        whole, whole, st.builds(ResourceRequest, share_mgpu=st.sampled_from((250, 500, 600)), **common)
    )


def job_lists(
    n_partitions: int = 2, priorities: tuple[float, ...] = (0.0, 0.0, 1.0), qos: tuple[str, ...] = ("",)
) -> st.SearchStrategy[list[ModelJob]]:
    one = st.builds(
        ModelJob,
        request=requests(),
        submit_s=st.integers(0, 60).map(float),
        run_s=st.integers(0, 40).map(float),
        limit_s=st.sampled_from((5.0, 10.0, 20.0, 40.0, math.inf)),
        partition=st.integers(0, n_partitions - 1),
        priority=st.sampled_from(priorities),
        cancel_s=st.sampled_from((math.inf, math.inf, 70.0)),
        counters=st.sampled_from(((), (0,), (1,), (0, 1))),
        qos=st.sampled_from(qos),
    )
    return st.lists(one, max_size=16).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_s))


def run(
    cluster: ModelCluster, jobs: Sequence[ModelJob], scheduling: Scheduling, **options: object
) -> ModelOutcome:
    return simulate(
        cluster,
        Jobs.of(jobs),
        scheduling=scheduling,
        counters=COUNTERS,
        log=True,
        **options,  # type: ignore[arg-type]
    )


@settings(max_examples=50)
@given(clusters(), job_lists(qos=("", "loan", "owner")), st.sampled_from(SCHEDULINGS))
def test_nothing_is_allocated_twice_limits_are_kept_and_every_job_is_accounted_for(
    cluster: ModelCluster, jobs: list[ModelJob], scheduling: Scheduling
) -> None:
    outcome = run(cluster, jobs, scheduling, preemption=OWNER_FIRST)
    audit = LogAudit(cluster, jobs, COUNTERS)
    for _, events in moments(outcome.log):
        for event in events:
            audit.take_in(event)
            assert all(min((*devices, cpus, mib)) >= 0 for devices, cpus, mib in audit.room())
            assert not audit.over_limit()
            if event.what is JobTransition.START:
                assert set(event.nodes) <= set(audit.nodes_of(event.job))
                assert len(set(event.nodes)) == jobs[event.job].request.nodes
                if jobs[event.job].request.one_zone:
                    assert len({cluster.nodes[node].zone for node in event.nodes}) == 1
    assert not audit.running
    ends = [event.job for event in outcome.log if event.what is JobTransition.END]
    assert len(ends) == len(set(ends))
    last_start_s = {event.job: event.at_s for event in outcome.log if event.what is JobTransition.START}
    for index, job in enumerate(jobs):
        if index in ends:
            assert outcome.end_s[index] == last_start_s[index] + min(job.run_s, job.limit_s)
            assert job.submit_s <= outcome.start_s[index] <= last_start_s[index]
            assert 0 <= outcome.limited_s[index] <= outcome.start_s[index] - job.submit_s
        else:
            is_cancelled = job.cancel_s < math.inf
            empty = LogAudit(cluster, jobs, COUNTERS)
            assert is_cancelled or not empty.fits(index, empty.room()) or empty.over_limit([index])


@settings(max_examples=50)
@given(clusters(), job_lists(qos=("", "loan", "owner")), st.sampled_from(SCHEDULINGS))
def test_a_job_straddles_zones_only_once_it_has_waited_for_one_and_then_as_any_other(
    cluster: ModelCluster, jobs: list[ModelJob], scheduling: Scheduling
) -> None:
    outcome = run(cluster, jobs, scheduling, preemption=OWNER_FIRST, zone_wait_s=15.0)
    free = [replace(job, request=replace(job.request, one_zone=False)) for job in jobs]
    ever = run(cluster, free, scheduling, preemption=OWNER_FIRST)
    for event in outcome.log:
        if event.what is JobTransition.START and jobs[event.job].request.one_zone:
            one = len({cluster.nodes[node].zone for node in event.nodes}) == 1
            assert one or event.at_s >= jobs[event.job].submit_s + 15
    for index, job in enumerate(jobs):
        started = not math.isnan(outcome.start_s[index])
        assert started or math.isnan(ever.start_s[index]) or job.cancel_s < math.inf


@settings(max_examples=50)
@given(clusters(n_partitions=1), job_lists(n_partitions=1))
def test_backfill_leaves_nothing_idle_that_it_could_use(cluster: ModelCluster, jobs: list[ModelJob]) -> None:
    outcome = run(cluster, jobs, Scheduling())
    audit = LogAudit(cluster, jobs, COUNTERS)
    for now_s, events in moments(outcome.log):
        for event in events:
            audit.take_in(event)
        order = audit.order()
        assert not order or not audit.fits(order[0], audit.room()), "the first one waits for nothing"
        possible = [job for job in order if audit.latest_start(job, now_s) < math.inf]
        if possible:
            shadow_s = audit.latest_start(possible[0], now_s)
            for job in order:
                over_by_then = now_s + jobs[job].limit_s <= shadow_s
                assert not (over_by_then and audit.fits(job, audit.room())), (
                    "it would have delayed no other job"
                )


def _trivial(submit_s: float, run_s: float) -> ModelJob:
    """Return a job so small that any number of such jobs can run concurrently."""
    return ModelJob(request=ResourceRequest(gpus=0, cpus=0), submit_s=submit_s, run_s=run_s, limit_s=5.0)


@settings(max_examples=50)
@given(clusters(n_partitions=1), job_lists(n_partitions=1, priorities=(0.0,)), st.sampled_from(SCHEDULINGS))
@example(
    ModelCluster((ModelNode(name="n0", gpus=0, cpus=1, memory_mib=500),), (ModelPartition("p0", (0,)),)),
    [_trivial(0.0, 0.0)] * 5 + [_trivial(1.0, 1.0)] * 2 + [_trivial(1.0, 0.0)],
    Scheduling(depth=2),
)
def test_the_first_of_the_queue_starts_no_later_than_promised_when_it_became_the_first(
    cluster: ModelCluster, jobs: list[ModelJob], scheduling: Scheduling
) -> None:
    outcome = run(cluster, jobs, scheduling)
    audit = LogAudit(cluster, jobs, COUNTERS)
    promised: dict[int, float] = {}
    for now_s, events in moments(outcome.log):
        for event in events:
            audit.take_in(event)
            if event.what is JobTransition.START:
                assert event.at_s <= promised.get(event.job, math.inf)
                # A job submitted earlier, and delayed by a limit until now, goes first.
                promised = {job: at for job, at in promised.items() if job <= event.job}
        order = audit.order()
        # Limits may allow an earlier job to go first again: then there was no reservation.
        promised = {job: at for job, at in promised.items() if order[:1] == [job]}
        # After `depth` starts a pass ends: the job that is first now is examined only in the next pass.
        n_started = sum(event.what is JobTransition.START for event in events)
        is_examined = scheduling.depth is None or n_started < scheduling.depth
        if order and scheduling.backfill_every_s == 0 and is_examined:
            latest = audit.latest_start(order[0], now_s)
            promised[order[0]] = min(latest, promised.get(order[0], math.inf))


@settings(max_examples=50)
@given(clusters(), job_lists(priorities=(0.0, 1.0)), st.sampled_from(SCHEDULINGS))
def test_equals_start_in_the_order_of_priority_and_then_of_submission(
    cluster: ModelCluster, jobs: list[ModelJob], scheduling: Scheduling
) -> None:
    starts = run(cluster, jobs, scheduling).start_s.tolist()
    started: dict[object, list[tuple[float, int]]] = {}
    for index, job in enumerate(jobs):
        alike = (job.request, job.partition, job.limit_s, job.counters)
        if not math.isnan(starts[index]):
            started.setdefault(alike, []).append((starts[index], index))
    for same in started.values():
        for start, index in same:
            for other_start, other in same:
                ahead = jobs[other].priority >= jobs[index].priority and other < index
                assert not ahead or other_start <= start


@settings(max_examples=50)
@given(clusters(), job_lists(qos=("", "loan", "owner")), st.sampled_from(SCHEDULINGS))
def test_the_same_input_gives_the_same_log(
    cluster: ModelCluster, jobs: list[ModelJob], scheduling: Scheduling
) -> None:
    first = run(cluster, jobs, scheduling, preemption=OWNER_FIRST)
    assert run(cluster, jobs, scheduling, preemption=OWNER_FIRST).log == first.log


@settings(max_examples=50)
@given(clusters(), job_lists())
def test_jobs_as_objects_and_as_columns_are_the_same(cluster: ModelCluster, jobs: list[ModelJob]) -> None:
    columns = Jobs.of(jobs)
    for index, job in enumerate(jobs):
        assert columns.requests[columns.request[index]] == job.request
        assert columns.counter_sets[columns.counters[index]] == job.counters
        assert columns.qos_names[columns.qos[index]] == job.qos
        assert (columns.submit_s[index], columns.limit_s[index]) == (job.submit_s, job.limit_s)
