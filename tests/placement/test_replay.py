"""Figures of a simulation, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.placement.replay import figures, in_one_zone_where_possible, longest_as_first_s, mix_of
from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import Jobs, ModelJob, ResourceRequest
from slurm_gpu.simulate.model import simulate

HOUR_S = 3600.0
ONE, TWO, PAIR = ResourceRequest(gpus=1), ResourceRequest(gpus=2), ResourceRequest(nodes=2, gpus=2)


def cluster(*zones: str, gpus: int = 2) -> ModelCluster:
    nodes = tuple(
        ModelNode(name=f"n{i}", gpus=gpus, cpus=8, memory_mib=8, zone=zone) for i, zone in enumerate(zones)
    )
    return ModelCluster(nodes, (ModelPartition("gpu", tuple(range(len(nodes)))),))


def job(submit_h: float, request: ResourceRequest, run_h: float) -> ModelJob:
    return ModelJob(request=request, submit_s=submit_h * HOUR_S, run_s=run_h * HOUR_S, limit_s=run_h * HOUR_S)


def test_used_stranded_and_idle_gpus_while_jobs_wait() -> None:
    # One of two GPUs is in use for four hours. From hour 1 to 4, a job that needs both waits. The measured
    # time ends with the last submission, at hour 10.
    jobs = Jobs.of([job(0, ONE, 4), job(1, TWO, 2), job(10, ONE, 1)])
    where = cluster("z")
    found = figures(where, jobs, simulate(where, jobs, log=True))
    assert found.jobs == 3
    assert found.never_started == 0
    assert found.utilisation == pytest.approx((4 * 1 + 2 * 2) / 20)
    # One in three jobs of the mix needs two GPUs: for it the free GPU is stranded for four hours.
    assert found.stranded_gpu_hours == pytest.approx(4 / 3)
    assert found.idle_gpu_hours_while_waiting == pytest.approx(3)
    assert found.longest_as_first_h == pytest.approx(3)
    assert found.waits["1 GPU or less"].jobs == 2
    assert found.waits["1 GPU or less"].mean_h == 0
    assert found.waits["2 to 8 GPUs"].mean_h == pytest.approx(3)
    assert set(found.waits) == {"1 GPU or less", "2 to 8 GPUs"}


def test_jobs_that_straddle_zones_are_counted_and_those_that_never_start() -> None:
    where = cluster("a", "b")
    jobs = Jobs.of([job(0, PAIR, 1), job(2, ResourceRequest(gpus=3), 1), job(3, replace(PAIR, gpus=1), 1)])
    found = figures(where, jobs, simulate(where, jobs, log=True))
    assert (found.straddling, found.never_started) == (2, 1)


def test_jobs_have_to_be_in_one_zone_only_where_there_is_one_that_could_do() -> None:
    where = cluster("a", "a", "b")
    three = replace(PAIR, nodes=3)
    jobs = in_one_zone_where_possible(where, Jobs.of([job(0, ONE, 1), job(0, PAIR, 1), job(0, three, 1)]))
    assert [request.one_zone for request in jobs.requests] == [False, True, False]
    assert mix_of(jobs).requests == (ONE, TWO)
    assert mix_of(jobs).popularity == (pytest.approx(1 / 6), pytest.approx(5 / 6))


def test_the_wait_at_the_head_counts_from_reaching_the_head() -> None:
    where = cluster("z")
    jobs = Jobs.of([job(0, TWO, 4), job(1, TWO, 4), job(2, TWO, 4)])
    outcome = simulate(where, jobs)
    assert outcome.start_s.tolist() == [0, 4 * HOUR_S, 8 * HOUR_S]
    assert longest_as_first_s(jobs, outcome) == 4 * HOUR_S
    assert longest_as_first_s(jobs, outcome, np.array([True, True, False])) == 3 * HOUR_S


def test_nothing_to_run_and_no_log() -> None:
    where = cluster("z")
    none = Jobs.of([])
    found = figures(where, none, simulate(where, none, log=True))
    assert (found.jobs, found.utilisation, found.waits) == (0, 0.0, {})
    jobs = Jobs.of([job(0, ONE, 1)])
    with pytest.raises(ValueError, match="need a log"):
        figures(where, jobs, simulate(where, jobs))


def test_waits_are_grouped_by_the_requested_scale() -> None:
    jobs = Jobs.of([job(0, ResourceRequest(nodes=3, gpus=3), 1)])
    where = cluster("z", "z", "z", gpus=4)
    outcome = simulate(where, jobs, log=True)
    assert list(figures(where, jobs, outcome).waits) == ["9 to 32 GPUs"]
    assert list(figures(where, jobs, outcome, np.array([8000])).waits) == ["2 to 8 GPUs"]
