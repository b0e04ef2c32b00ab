"""The use of what a run requested, and suggestions for smaller requests."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.reports.run_use.requested_use import requested_uses
from slurm_gpu.reports.run_use.suggestions import MOST, suggestions
from slurm_gpu.text.units import parse_slurm_time
from slurm_gpu.wire import DeviceFacts, Mean
from slurm_gpu.wire.answers.runs import Run
from tests.cli.conftest import START_S, make_record, make_run
from tests.cli.test_job_detail import make_host

_GIB = 1024.0
_MIN_COVERAGE = 0.8


def run_with(*, hosts: Any = None, **changes: Any) -> Run:
    """Return a completed one-hour run on one GPU that used 3.8 of 16 CPUs and 12 of 64 GiB of memory."""
    values: dict[str, Any] = {
        "devices": (make_record("GPU-a", mem_used_mib=Mean(3600, 9 * _GIB, 0.0, 10 * _GIB)),),
        "device_facts": {"GPU-a": DeviceFacts(uuid="GPU-a", node="n1", at_s=START_S, memory_mib=80 * _GIB)},
        "hosts": (make_host(),) if hosts is None else hosts,
        "n_gpus": 1.0,
        "tres_allocated": {"cpu": 16, "mem": 64 * _GIB},
    }
    return make_run(**values | changes)


def uses_of(run: Run) -> dict[str, tuple[float | None, float | None]]:
    return {use.resource: (use.used, use.requested) for use in requested_uses(run)}


def test_the_use_of_each_resource_is_that_of_the_whole_run():
    assert uses_of(run_with()) == {
        "gpu": (0.4225, 1.0),
        "gpu_memory": (10 * _GIB, 80 * _GIB),
        "cpu": (3.8, 16),
        "memory": (12 * _GIB, 64 * _GIB),
    }


def test_the_use_on_several_nodes_is_summed():
    hosts = (make_host(), make_host(node="n2", segment="1" * 16, cpu_s=3600.0, rss_max_mib=4 * _GIB))
    uses = uses_of(run_with(hosts=hosts, n_nodes=2))
    assert uses["cpu"] == (4.8, 16)
    assert uses["memory"] == (16 * _GIB, 64 * _GIB)


@pytest.mark.parametrize(
    ("changes", "resource"),
    [
        ({"hosts": ()}, "cpu"),
        ({"n_nodes": 2}, "cpu"),
        ({"n_nodes": 2}, "memory"),
        ({"hosts": (make_host(rss_max_mib=None),)}, "memory"),
        ({"device_facts": {}}, "gpu_memory"),
        ({"ugpucore": None}, "gpu"),
    ],
)
def test_use_that_was_not_measured_on_every_node_is_unknown(changes: dict[str, Any], resource: str):
    assert uses_of(run_with(**changes))[resource][0] is None


def test_a_measured_0_is_no_gap():
    assert uses_of(run_with(ugpucore=0.0))["gpu"] == (0.0, 1.0)


def test_a_request_that_accounting_lacks_is_unknown():
    assert uses_of(run_with(tres_allocated=None))["memory"] == (12 * _GIB, None)


@pytest.mark.parametrize("changes", [{"full": False}, {"start_s": None}])
def test_nothing_is_known_of_hidden_and_pending_runs(changes: dict[str, Any]):
    assert requested_uses(run_with(**changes)) == []


def test_each_suggestion_names_the_use_and_an_option():
    run = run_with(hosts=(make_host(cpu_s=3600.0, rss_max_mib=11 * _GIB),), time_limit_s=86_400)
    assert suggestions(run, _MIN_COVERAGE) == [
        "The run used at most 11.0 of 64 GiB of memory: --mem=16G.",
        "On average, 1.0 of 16 CPUs were busy: --cpus-per-gpu=2, "
        "unless the work needs more for a short time.",
        "The run took 1h00m of its time limit of 1d00h: --time=02:00:00. Shorter jobs can start earlier.",
    ]


def test_there_are_at_most_three_and_idle_gpus_come_first():
    idle = make_record("GPU-b", util_hist_ms={0: 3_600_000})
    run = run_with(
        hosts=(make_host(cpu_s=360.0),),
        devices=(make_record("GPU-a"), idle),
        n_gpus=2.0,
        time_limit_s=86_400,
    )
    found = suggestions(run, _MIN_COVERAGE)
    assert len(found) == MOST
    assert found[0].endswith("--gpus=1.")


@pytest.mark.parametrize(
    "changes",
    [
        {"end_s": None, "state": "RUNNING"},
        {"full": False},
        {"state": "OUT_OF_MEMORY"},
        {"state": "TIMEOUT"},
        {"elapsed_s": 599},
    ],
)
def test_only_runs_that_completed_their_work_are_judged(changes: dict[str, Any]):
    assert not suggestions(run_with(**{"time_limit_s": 86_400} | changes), _MIN_COVERAGE)


@pytest.mark.parametrize(
    "hosts", [(), (make_host(last_s=START_S + 2800),), (make_host(rss_max_mib=None, cpu_s=None),)]
)
def test_hosts_with_low_coverage_are_not_judged(hosts: Any):
    assert not suggestions(run_with(hosts=hosts), _MIN_COVERAGE)


def test_memory_of_several_nodes_is_that_of_the_fullest():
    hosts = (make_host(rss_max_mib=2 * _GIB), make_host(node="n2", segment="1" * 16, rss_max_mib=6 * _GIB))
    run = run_with(hosts=hosts, n_nodes=2, tres_allocated={"mem": 64 * _GIB})
    assert suggestions(run, _MIN_COVERAGE) == [
        "The run used at most 6.0 of 32 GiB of memory on each node: --mem=8G."
    ]


@pytest.mark.parametrize("used_gib", [0.1, 0.9, 3.0, 11.0, 40.0, 100.0, 900.0])
def test_suggested_memory_always_exceeds_the_highest_use(used_gib: float):
    hosts = (make_host(cpu_s=None, rss_max_mib=used_gib * _GIB),)
    (text,) = suggestions(run_with(hosts=hosts, tres_allocated={"mem": 8192 * _GIB}), _MIN_COVERAGE)
    option = text.rpartition("--mem=")[2].rstrip(".")
    gib = float(option[:-1]) * {"G": 1, "T": 1024}[option[-1]]
    assert 1.25 * used_gib <= gib <= max(1.0, 2 * 1.25 * used_gib)


@pytest.mark.parametrize("elapsed_s", [601, 1800, 3599, 3601, 20_000, 400_000])
def test_the_suggested_time_is_at_least_twice_the_time_that_the_run_took(elapsed_s: int):
    (text,) = suggestions(run_with(elapsed_s=elapsed_s, hosts=(), time_limit_s=30 * 86_400), _MIN_COVERAGE)
    option = text.partition("--time=")[2].split(". ")[0]
    assert 2 * elapsed_s <= parse_slurm_time(option) <= 2 * elapsed_s + 3600


def test_a_suitable_request_needs_no_change():
    assert not suggestions(run_with(tres_allocated={"cpu": 4, "mem": 16 * _GIB}), _MIN_COVERAGE)
