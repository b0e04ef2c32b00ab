"""bench/placement_churn.py: every rule gets the same jobs, and the results add up."""

from __future__ import annotations

import json
import sys

import pytest

from bench import placement_churn
from slurm_gpu.placement.mix import Mix
from slurm_gpu.simulate.jobs import ResourceRequest

ASKED = {ResourceRequest(gpus=1, cpus=8): 3, ResourceRequest(gpus=8, cpus=64): 1}


def test_a_cluster_with_little_load_rejects_no_job() -> None:
    nodes = placement_churn.empty_nodes(16)
    for rule in placement_churn.rules(Mix.of(ASKED.items()), 1).values():
        found = placement_churn.run(rule(), ASKED, nodes, 0.1, 3, 300)
        assert found.turned_away == 0
        assert found.used < 0.3
        assert found.whole > 8


def test_a_cluster_with_twice_its_capacity_requested_rejects_half_reproducibly() -> None:
    nodes = placement_churn.empty_nodes(2)
    make = placement_churn.rules(Mix.of(ASKED.items()), 1)["weights"]
    one, other = (placement_churn.run(make(), ASKED, nodes, 2.0, 1, 600) for _ in range(2))
    assert one == other
    assert 0.35 < one.turned_away < 0.8
    assert one.by_gpus[8] > one.by_gpus[1]


def test_results_of_all_rules_have_stable_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["placement_churn", "--seeds", "2", "--events", "20", "--nodes", "2", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    placement_churn.main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(answer["rules"]) == list(placement_churn.LOADS)
    for figures in answer["rules"].values():
        assert list(figures) == [
            "slurm",
            "weights_fullness",
            "weights_untimed",
            "weights",
            "weights_by_type",
            "ours",
            "ours_whole",
        ]
        assert list(figures["weights"]) == [
            "turned_away",
            "standard_error",
            "turned_away_8_gpus",
            "used",
            "whole",
        ]
