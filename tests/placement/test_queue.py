"""With every placement rule, each job in a simulated queue starts within a bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.placement.choice import LeastFragmentation, MostAllocated, PlacementRule
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.placing import ByRule, ModelView, empty_nodes
from slurm_gpu.placement.replay import longest_as_first_s
from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import Jobs, ModelJob, ResourceRequest
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.outcome import JobTransition
from slurm_gpu.simulate.placement import FirstFit, PlacementChoice
from slurm_gpu.simulate.scheduler import Scheduling
from slurm_gpu.simulate.state import ModelState

LONGEST_S = 400.0
REQUESTS = (
    ResourceRequest(gpus=1, cpus=4),
    ResourceRequest(gpus=2, cpus=8),
    ResourceRequest(gpus=4, cpus=30),
    ResourceRequest(share_mgpu=250, cpus=1),
    ResourceRequest(cpus=20),
    ResourceRequest(nodes=2, gpus=4, cpus=8, one_zone=True),
    ResourceRequest(nodes=3, gpus=2, one_zone=True),
    ResourceRequest(nodes=6, gpus=4, one_zone=True),
)
MIX = Mix.of((request, 1) for request in REQUESTS)


def cluster(n_zones: int = 3, per_zone: int = 4) -> ModelCluster:
    nodes = tuple(
        ModelNode(name=f"n{i}", gpus=4, cpus=32, memory_mib=1000, zone=f"z{i // per_zone}")
        for i in range(n_zones * per_zone)
    )
    return ModelCluster(nodes, (ModelPartition("gpu", tuple(range(len(nodes)))),))


def mixed_jobs(n: int, seed: int, load: float) -> Jobs:
    """Return random jobs of all sizes with random submission times."""
    random = np.random.default_rng(seed)
    request = random.choice(len(REQUESTS), size=n, p=(0.3, 0.15, 0.1, 0.15, 0.1, 0.1, 0.05, 0.05))
    run_s = random.integers(5, int(LONGEST_S), n)
    limit_s = np.minimum(run_s * random.integers(1, 4, n), LONGEST_S)
    gpu_s = sum(
        REQUESTS[r].mgpu / 1000 * run for r, run in zip(request.tolist(), run_s.tolist(), strict=True)
    )
    submit_s = np.sort(random.uniform(0, gpu_s / (48 * load), n)).round()
    return Jobs.of(
        ModelJob(request=REQUESTS[r], submit_s=at, run_s=min(run, limit), limit_s=limit)
        for r, at, run, limit in zip(
            request.tolist(), submit_s.tolist(), run_s.tolist(), limit_s.tolist(), strict=True
        )
    )


def placement(rule: PlacementRule | None) -> PlacementChoice:
    return FirstFit() if rule is None else ByRule(cluster(), rule)


@pytest.mark.parametrize(
    "rule", [None, MostAllocated(), LeastFragmentation(MIX)], ids=["first", "most", "ours"]
)
@pytest.mark.parametrize("zone_wait_s", [60.0, 2000.0])
def test_every_job_starts_and_the_first_of_the_queue_within_the_longest_time_limit(
    rule: PlacementRule | None, zone_wait_s: float
) -> None:
    # Demand exceeds capacity, so the queue grows until the end; the six-node job fits no zone.
    jobs = mixed_jobs(250, seed=1, load=1.3)
    outcome = simulate(
        cluster(),
        jobs,
        placement=placement(rule),
        zone_wait_s=zone_wait_s,
        log=True,
        scheduling=Scheduling(backfill_every_s=30, depth=100),
    )
    assert not np.isnan(outcome.end_s).any(), "every job ends"
    # A job that fits a zone gets a reservation; one that fits none first waits for the bound.
    assert longest_as_first_s(jobs, outcome) <= LONGEST_S + zone_wait_s
    fits_a_zone = [jobs.requests[code].nodes <= 4 for code in jobs.request]
    assert longest_as_first_s(jobs, outcome, np.array(fits_a_zone)) <= LONGEST_S
    straddling = [
        event
        for event in outcome.log
        if event.what is JobTransition.START
        and jobs.requests[jobs.request[event.job]].one_zone
        and len({node // 4 for node in event.nodes}) > 1
    ]
    assert all(event.at_s >= jobs.submit_s[event.job] + zone_wait_s for event in straddling)


@settings(max_examples=40)
@given(st.data())
def test_rules_receive_the_state_of_the_model(data: st.DataObject) -> None:
    where = cluster(2, 2)
    state, by_rule, view = ModelState(where), ByRule(where, LeastFragmentation(MIX)), ModelView(where)
    for job in range(data.draw(st.integers(0, 8))):
        request = replace(data.draw(st.sampled_from(REQUESTS[:5])), one_zone=False)
        fitting = np.flatnonzero(state.fits(request, state.room(0, "")))
        if len(fitting):
            nodes = by_rule.choose(state, request, fitting)
            state.start(job, request, nodes, [by_rule.devices(state, node, request) for node in nodes], 1.0)
        elif state.running:
            state.end(data.draw(st.sampled_from(sorted(state.running))))
        if data.draw(st.booleans()):
            view.nodes(state)
    seen, _ = view.nodes(state)
    expected = empty_nodes(where)
    for allocation in state.running.values():
        for node, devices in zip(allocation.nodes, allocation.devices, strict=True):
            expected = expected.take(node, allocation.request, devices)
    for name in ("free_mgpu", "free_cpus", "free_memory_mib", "up"):
        assert (getattr(seen, name) == getattr(expected, name)).all()


def test_a_job_is_placed_in_the_fullest_zone_that_fits() -> None:
    where = cluster(3, 4)
    state, by_rule = ModelState(where), ByRule(where, LeastFragmentation(MIX))
    state.start(1, ResourceRequest(nodes=2, gpus=4), (4, 6), ((0, 1, 2, 3), (0, 1, 2, 3)), 1.0)  # half of z1
    state.start(
        2, ResourceRequest(nodes=3, gpus=4), (8, 9, 10), ((0, 1, 2, 3),) * 3, 1.0
    )  # all but one of z2
    request = ResourceRequest(nodes=2, gpus=4, one_zone=True)
    fit = state.together(request, state.fits(request, state.room(0, "")))
    assert sorted(by_rule.choose(state, request, np.flatnonzero(fit))) == [5, 7]
