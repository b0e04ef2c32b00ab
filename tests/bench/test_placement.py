"""Input, arrivals and output of the published experiment are correct on a trace of four nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import placement
from slurm_gpu.simulate.jobs import ResourceRequest


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    nodes = ["sn,cpu_milli,memory_mib,gpu,model", *(f"n{i},32000,65536,4,T4" for i in range(4))]
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    pods = [
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec",
        "a,4000,8192,1,1000,",
        "b,1000,1024,1,250,",
        "c,8000,8192,4,1000,",
        "d,2000,1024,0,0,",
    ]
    (tmp_path / "openb_pod_list_default.csv").write_text("\n".join(pods) + "\n")
    return tmp_path


def test_pods_request_whole_gpus_parts_of_one_or_none(trace: Path) -> None:
    assert placement.read_pods(trace) == [
        ResourceRequest(gpus=1, cpus=4000, memory_mib=8192),
        ResourceRequest(share_mgpu=250, cpus=1000, memory_mib=1024),
        ResourceRequest(gpus=4, cpus=8000, memory_mib=8192),
        ResourceRequest(cpus=2000, memory_mib=1024),
    ]
    assert placement.read_nodes(trace).n_gpus.tolist() == [4, 4, 4, 4]


def test_pods_arrive_until_they_have_requested_130_percent(trace: Path) -> None:
    pods = list(placement.arrivals(placement.read_pods(trace), 16_000, seed=3))
    asked = sum(pod.mgpu for pod in pods)
    assert asked - pods[-1].mgpu < 1.3 * 16_000 <= asked
    assert pods == list(placement.arrivals(placement.read_pods(trace), 16_000, seed=3))


def test_a_pod_that_may_have_some_types_only_is_not_passed_over_in_silence(trace: Path) -> None:
    file = trace / "openb_pod_list_default.csv"
    file.write_text(file.read_text() + "e,1000,1024,1,1000,T4|P100\n")
    with pytest.raises(SystemExit, match=r"e asks for GPUs T4\|P100"):
        placement.read_pods(trace)


def test_results_of_all_rules_have_stable_keys(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["placement", "--data", str(trace), "--seeds", "2", "--nodes", "4", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    placement.main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(answer["allocated_percent"]) == [
        "random",
        "bestfit",
        "mostallocated",
        "slurm",
        "weights_fullness",
        "weights",
        "weights_by_type",
        "fgd",
        "ours",
        "ours_whole_last",
    ]
    assert all(50 < value <= 100 for value in answer["allocated_percent"].values())
    times = answer["decision_ms"]["4"]
    assert 0 < times["all_nodes"] <= times["all_nodes_max"]
    assert {"all_nodes_cpu", "changed_nodes", "changed_nodes_cpu"} <= set(times)
    assert answer["decision_ms_1213_nodes"] is None, "there are four nodes here"
