"""Call `slurm-gpu report recommend` as operators do."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.limit_value import single_value
from tests.cli.conftest import NOW_S, CommandLine, make_run

HOUR = 3600
DAY = 24 * HOUR
POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {grads: {accounts: [vision]}}
rules:
  - {id: share, for: grads, per: user, why: "One each.", limits: {gpus_running: 1}}   # one
"""


@pytest.fixture
def recommend(slurm_gpu: CommandLine, tmp_path: Path) -> CommandLine:
    """Add two one-hour jobs on each of twenty days; the limit lets one of them run at a time."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    slurm_gpu.database.runs = [
        _run(20 * day + place, NOW_S - (21 - day) * DAY, place) for day in range(1, 21) for place in (0, 1)
    ]
    return slurm_gpu


def _run(job_id: int, at_s: int, place: int) -> object:
    tres = {"cpu": 1.0, "mem": 100.0, "gres/gpu": 1.0}
    start_s = at_s + place * HOUR
    return make_run(
        id=str(job_id),
        job_id=job_id,
        submit_s=at_s,
        eligible_s=at_s,
        start_s=start_s,
        end_s=start_s + HOUR,
        elapsed_s=HOUR,
        time_limit_s=2 * HOUR,
        tres_requested=tres,
        tres_allocated=tres,
        n_gpus=1.0,
        gpu_type=None,
    )


def test_the_patch_changes_the_limit_and_the_evidence_is_printed(
    recommend: CommandLine, tmp_path: Path
) -> None:
    patch = tmp_path / "limits.patch"
    assert recommend("report", "recommend", "--out", str(patch)) == 0
    assert "gpus_running of share: 1 → 2" in recommend.out
    gpus = int(re.findall(r"nodes with (\d+) GPUs", recommend.out)[0])
    assert ["grads", "20.00", f"{gpus - 1:.1f}"] in recommend.rows(), (
        "the row of waiting GPU-hours is missing"
    )
    assert ["grads", "40", "0.50", "0.50", "100%"] in recommend.rows()
    assert any(row[:4] == ["grads", "40", "0.50", "0.00"] for row in recommend.rows())
    subprocess.run(("patch", "-s", str(tmp_path / "policy.yaml"), str(patch)), check=True)
    text = (tmp_path / "policy.yaml").read_text()
    assert text == POLICY.replace("gpus_running: 1", "gpus_running: 2")


def test_the_patch_keeps_line_endings(recommend: CommandLine, tmp_path: Path) -> None:
    policy, patch = tmp_path / "policy.yaml", tmp_path / "limits.patch"
    policy.write_bytes(POLICY.replace("\n", "\r\n").encode())
    assert recommend("report", "recommend", "--out", str(patch)) == 0
    subprocess.run(("patch", "-s", str(policy), str(patch)), check=True)
    changed = POLICY.replace("gpus_running: 1", "gpus_running: 2").replace("\n", "\r\n")
    assert policy.read_bytes() == changed.encode()


def test_the_policy_itself_is_not_changed(recommend: CommandLine, tmp_path: Path) -> None:
    assert recommend("report", "recommend") == 0
    assert "+  - {id: share, for: grads" in recommend.out
    assert (tmp_path / "policy.yaml").read_text() == POLICY
    policy, _ = load_policy(tmp_path / "policy.yaml")
    assert single_value(policy.rules[0], "gpus_running") == 1000


def test_waits_that_the_limits_do_not_explain_get_no_recommendation(recommend: CommandLine) -> None:
    recommend.database.runs = [
        _run(20 * day + place, NOW_S - (21 - day) * DAY, place + 5)
        for day in range(1, 21)
        for place in (0, 1)
    ]
    assert recommend("report", "recommend") == 1
    assert (
        "Nothing is proposed for all jobs: the model does not reproduce the recorded waits" in recommend.out
    )
    assert "→" not in recommend.out


def test_json_has_the_whole_recommendation(recommend: CommandLine) -> None:
    assert recommend("report", "recommend", "--json") == 0
    answer = json.loads(recommend.out)
    assert answer["changes"] == [{"rule": "share", "limit": "gpus_running", "old": "1", "new": "2"}]
    assert answer["waits"]["grads"]["before"]["mean_h"] == pytest.approx(0.5, abs=0.01)
    assert answer["waits"]["grads"]["after"]["mean_h"] == pytest.approx(0, abs=0.01)
    assert answer["reproduction"]["all jobs"]["within_2x"] == 1.0
    assert answer["patch"].startswith("--- ")
    assert answer["refused"] == []


def test_every_key_of_the_json_is_documented(recommend: CommandLine) -> None:
    assert recommend("report", "recommend", "--json") == 0
    answer = json.loads(recommend.out)
    documented = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()
    section = documented.split("## slurm-gpu report recommend")[1].split("\n## ")[0]
    (change,), trial = answer["changes"], answer["tried"][0]
    keys = {*answer, *change, *trial, *answer["waits"]["grads"]["before"], *answer["reproduction"]["grads"]}
    assert {key for key in keys if key not in section} == set()


def test_a_policy_without_suitable_limits_is_an_error(recommend: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("gpus_running", "gpus_total"))
    assert recommend("report", "recommend") == 2
    assert "no limits on running jobs (such as gpus_running) that Slurm enforces" in recommend.err


def test_a_user_who_cannot_see_all_jobs_gets_an_error(recommend: CommandLine) -> None:
    recommend.database.runs.append(make_run(full=False))
    assert recommend("report", "recommend") == 3
    assert "the jobs of all users" in recommend.err
