"""`slurm-gpu placement replay` works with the recorded Slurm, in which n1, n2 and n3 have GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import START_S, CommandLine, make_run
from tests.slurm.recorded import NOW_S


def tres(gpus: float, nodes: int = 1) -> dict[str, float]:
    return {"cpu": 1.0 * nodes, "mem": 1.0 * nodes, "gres/gpu": gpus * nodes}


def placed(job_id: int, at_s: int, gpus: int, hours: float, n_nodes: int = 1) -> object:
    """Return a run that began when it was submitted."""
    return make_run(
        id=str(job_id),
        job_id=job_id,
        submit_s=at_s,
        eligible_s=at_s,
        start_s=at_s,
        end_s=at_s + int(hours * 3600),
        time_limit_s=int(hours * 3600),
        n_nodes=n_nodes,
        tres_requested=tres(gpus, n_nodes),
        tres_allocated=tres(gpus, n_nodes),
        n_gpus=float(gpus * n_nodes),
    )


@pytest.fixture
def replay(slurm_gpu: CommandLine) -> CommandLine:
    """Add small jobs; each node has four GPUs."""
    slurm_gpu.database.runs = [  # type: ignore[assignment]
        placed(1, START_S, 1, 1.0),
        placed(2, START_S + 60, 3, 1.0),
        placed(3, START_S + 120, 1, 1.0),
        placed(4, START_S + 1200, 1, 0.5),
    ]
    return slurm_gpu


def test_the_same_jobs_under_each_rule(replay: CommandLine) -> None:
    assert replay("placement", "replay", "--since", "1d", "--json") == 0
    answer = json.loads(replay.out)
    assert list(answer["rules"]) == ["slurm", "mostallocated", "weights", "ours"]
    for figures in answer["rules"].values():
        assert (figures["jobs"], figures["never_started"]) == (4, 0)
        assert figures["waits"]["1 GPU or less"]["jobs"] == 3
        assert 0 < figures["utilisation"] < 1
    assert answer["reproduction"]["jobs"] == 4
    assert answer["left_out"] == []


def test_the_table_is_printed_with_a_warning_on_the_accuracy_of_the_model(replay: CommandLine) -> None:
    assert replay("placement", "replay", "--since", "1d") == 0
    assert replay.rows()[0] == ["4", "jobs", "in", "the", "period"]
    assert [row[0] for row in replay.rows()[2:6]] == ["slurm", "mostallocated", "weights", "ours"]
    assert "With Slurm's own placement: only 4 jobs to compare with the model; 30 are required" in replay.err


def test_only_the_rule_ours_keeps_a_job_in_one_zone(replay: CommandLine, tmp_path: Path) -> None:
    replay.config.write_text(
        "cluster: neuron\ntimezone: Asia/Seoul\nzones: {a: {nodes: 'n[1,3]'}, b: {nodes: 'n[2,4]'}}\n"
    )
    replay.database.runs = [placed(1, START_S, 1, 1.0, n_nodes=2)]  # type: ignore[list-item]
    assert replay("placement", "replay", "--since", "1d", "--json") == 0
    rules = json.loads(replay.out)["rules"]
    assert {name: one["straddling"] for name, one in rules.items()} == {
        "slurm": 1,
        "mostallocated": 1,
        "weights": 1,
        "ours": 0,
    }


def test_an_empty_period_is_accepted_and_an_invalid_wait_is_an_error(replay: CommandLine) -> None:
    replay.database.runs = []
    assert replay("placement", "replay", "--since", "1d") == 0
    assert replay("placement", "replay", "--zone-wait", "60") == 2
    assert "'60' is not a duration" in replay.err
    assert NOW_S > START_S
