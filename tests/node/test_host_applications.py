"""The application of a job is found among any number of processes, those on GPUs first."""

import os
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.node.application.rules import check_rules
from slurm_gpu.node.process.procfs import TICKS_PER_S
from tests.node.fakeproc import write
from tests.node.hostnode import START_S, HostNode, allocation

RULES = check_rules(
    parse_yaml(
        "version: 1\napplications:\n"
        "  App: {field: tests, any: [{executable: app}], parameters: {n: '-n (.)'}}\n",
        "f",
    )
)


@pytest.fixture
def node(tmp_path: Path) -> HostNode:
    return HostNode(tmp_path, RULES)


def executable(node: HostNode, pid: int, name: str, arguments: str = "") -> None:
    node.proc.process(pid)
    (node.proc.root / str(pid) / "exe").symlink_to(f"/opt/{name}")
    write(node.proc.root / str(pid) / "cmdline", "\0".join([name, *arguments.split()]) + "\0")


def test_the_application_is_recognised_when_it_appears(node: HostNode) -> None:
    executable(node, 5, "bash")
    node.job(4, 5)
    node.recorder.begin(allocation(4))
    node.until(START_S + 20)
    executable(node, 6, "app", "-n 3 --token secret")
    node.job(4, 5, 6)
    hosts = node.until(START_S + 29)
    assert hosts[-1].app is None
    hosts = node.until(START_S + 40)
    assert (hosts[-1].app, hosts[-1].app_field, hosts[-1].app_params) == ("App", "tests", {"n": "3"})
    assert "secret" not in str(hosts)


def test_scans_of_a_job_with_many_processes_continue_until_one_is_recognised(node: HostNode) -> None:
    for pid in range(10, 65):
        executable(node, pid, "worker")
    executable(node, 65, "app")
    node.job(4, *range(10, 66))
    node.recorder.begin(allocation(4))
    assert node.until(START_S + 1.7)[-1].app == "App"


def test_processes_on_a_gpu_are_scanned_first(node: HostNode) -> None:
    for pid in range(10, 100):
        executable(node, pid, "worker")
    executable(node, 99_000, "app")
    node.job(4, *range(10, 100), 99_000)
    node.on_gpu = {4: [99_000]}
    node.recorder.begin(allocation(4))
    assert node.until(START_S + 2)[-1].app == "App"


def test_a_job_without_cgroup_or_environment_is_sampled_by_its_gpu_processes(node: HostNode) -> None:
    executable(node, 6, "app")
    node.proc.process(6, own=200)
    node.on_gpu = {4: [6]}
    node.recorder.begin(allocation(4))
    node.until(START_S + 2)
    host = node.finished(4)
    assert (host.cpu_s, host.app) == (200 / TICKS_PER_S, "App")


def test_a_job_of_twenty_thousand_processes_costs_no_more_than_a_large_one(
    node: HostNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(node, 77, "app")
    node.job(4, 77, *range(100_000, 120_000))
    write(
        node.root / f"cgroup/cpuacct/slurm_n1/uid_{os.geteuid()}/job_4/cpuacct.usage",
        "5000000000\n",
    )
    opened: list[object] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(path) or real_open(path, *more))
    node.recorder.begin(allocation(4))
    node.until(START_S + 2)
    assert 0 < len(opened) < 2000
    host = node.finished(4)
    assert (host.cpu_s, host.app) == (5.0, "App")
    assert (host.read_bytes, host.rss_max_mib) == (None, None)
