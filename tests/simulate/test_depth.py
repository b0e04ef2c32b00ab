"""In a deep queue unnecessary checks are skipped without changing the schedule."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.simulate.cluster import Outage
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.limits import LimitCounter, LimitCounters, Resource
from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.prospects import Prospects
from slurm_gpu.simulate.scheduler import Scheduling
from slurm_gpu.simulate.state import ModelState
from tests.simulate.building import cluster, job, run, starts

LONG_S = 10_000.0


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally[str]]:
    """Count the calls that check where a request fits, and whether it exceeds a limit."""
    tally: Tally[str] = Tally()

    def counted(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def count(self: object, *values: object) -> object:
            tally[name] += 1
            return plain(self, *values)

        monkeypatch.setattr(owner, name, count)

    counted(ModelState, "fits")
    counted(LimitCounters, "has_room")
    return tally


@pytest.mark.parametrize("scheduling", [Scheduling(), Scheduling(backfill_every_s=30)])
def test_equal_requests_are_checked_once_until_resources_are_freed(
    checks: Tally[str], scheduling: Scheduling
) -> None:
    waiting = [job(1 + n, run_s=LONG_S, limit_s=LONG_S + 60 * (n % 7)) for n in range(300)]
    run(cluster(1), job(0, run_s=400), *waiting, scheduling=scheduling)
    # One check for each of 301 starts, one each time the cluster is found full, and one while it is empty.
    assert checks["fits"] <= 2 * 301 + 1


def test_freed_resources_that_are_too_small_reopen_no_shape(checks: Tally[str]) -> None:
    small = [job(10 * n, run_s=5) for n in range(100)]
    arrivals = sorted(
        [job(0, gpus=3, run_s=LONG_S), job(1, gpus=4, run_s=10), *small[1:]], key=lambda one: one.submit_s
    )
    run(cluster(4), *arrivals)
    few = checks["fits"]
    # Each end frees one GPU on another node, which does not cause another check of the large job.
    assert few <= 2 * len(arrivals) + 10


def test_jobs_waiting_for_a_limit_are_checked_once_per_size(checks: Tally[str]) -> None:
    one_gpu = (LimitCounter("alice", {Resource.MGPU: 1000}),)
    alike = [job(0, run_s=10, limit_s=60 * (n + 1), counters=(0,)) for n in range(60)]
    run(cluster(8), *alike, counters=one_gpu)
    # At each of 60 ends: one check for all waiting jobs, and one for each that then finds the GPU taken.
    assert checks["has_room"] <= 60 + sum(range(61)) + 61


def test_a_job_that_would_preempt_in_vain_is_not_checked_again(checks: Tally[str]) -> None:
    owner_first = Preemption({"owner": frozenset({"loan"})})
    owners = [job(1 + n, run_s=10, qos="owner") for n in range(100)]
    run(cluster(1), job(0, run_s=LONG_S), *owners, preemption=owner_first)
    # In addition to one check per start, the free GPUs are checked as they are and with all loans requeued.
    assert checks["fits"] <= 4 * 101 + 2


def test_a_backfill_pass_examines_at_most_depth_jobs() -> None:
    large = job(0, gpus=2, run_s=100), job(1, gpus=4, run_s=50)
    small = job(2, gpus=1, run_s=10), job(2, gpus=1, cpus=2, run_s=10)

    def with_depth(depth: int | None) -> list[float | None]:
        return starts(cluster(4), *large, *small, scheduling=Scheduling(depth=depth))

    assert with_depth(None) == with_depth(3) == [0, 100, 2, 2]
    assert with_depth(2) == [0, 100, 2, 12]
    assert with_depth(1) == [0, 100, 150, 160]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # node
            st.sampled_from((0, 1, 2, 3)),  # whole GPUs
            st.integers(0, 3),  # CPUs
            st.sampled_from((10.0, 20.0, 30.0, math.inf)),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 7), max_size=4),
    st.builds(
        ResourceRequest,
        gpus=st.integers(0, 4),
        cpus=st.integers(0, 8),
        memory_mib=st.sampled_from((0, 64000, 64001)),
    ),
    st.booleans(),
)
def test_prospects_follow_from_the_time_limits(
    wanted: list[tuple[int, int, int, float]], ended: list[int], request: ResourceRequest, closed: bool
) -> None:
    where = cluster(2, 3, 4)
    state = ModelState(where)
    prospects = Prospects(state)
    room = state.room(0, "")
    prospects.when(request, room)  # kept from here on, and brought up to date
    for index, (node, gpus, cpus, until_s) in enumerate(wanted):
        free = [i for i, mgpu in enumerate(state.devices[node]) if mgpu == 1000]
        if len(free) >= gpus:
            allocated = ResourceRequest(gpus=gpus, cpus=cpus)
            state.start(index, allocated, (node,), (tuple(free[:gpus]),), until_s)
    for index in ended:
        if index in state.running:
            state.end(index)
    if closed:
        state.close(1)
    expected = []
    for node in range(3):
        moments = [-math.inf, *sorted(one.until_s for one in state.on_node[node].values())]
        for at_s in moments:
            free_then = state.free(node)
            for one in state.on_node[node].values():
                if one.until_s <= at_s < math.inf:
                    free_then.give_back(one.request, one.devices_on(node))
            if at_s < math.inf and free_then.fits(request) and state.open[node]:
                expected.append(at_s)
                break
        else:
            expected.append(math.inf)
    assert np.array_equal(prospects.when(request, room), expected)


def test_a_drained_node_that_returns_is_used_again() -> None:
    where = cluster(1, 1, outages=(Outage(1, 5, 50),))
    assert starts(where, job(0, run_s=LONG_S), job(10), job(11)) == [0, 50, 150]
