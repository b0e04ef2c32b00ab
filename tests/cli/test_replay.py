"""Call `slurm-gpu policy replay` as operators do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import START_S, CommandLine, make_run

POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}}
rules:
  - {id: share, for: vision, per: user, why: "Three each.", limits: {gpus_total: 3}}
"""


@pytest.fixture
def replay(slurm_gpu: CommandLine, tmp_path: Path) -> CommandLine:
    (tmp_path / "policy.yaml").write_text(POLICY)
    tres = {"cpu": 4.0, "node": 1.0, "gres/gpu": 2.0}
    slurm_gpu.database.runs = [
        make_run(tres_requested=tres),
        make_run(
            tres_requested=tres,
            id="18",
            job_id=18,
            submit_s=START_S + 60,
            start_s=None,
            end_s=None,
            n_gpus_requested=2.0,
        ),
        make_run(tres_requested=tres, id="19", job_id=19, user="bob", submit_s=START_S + 60),
    ]
    return slurm_gpu


def test_refused_jobs_are_listed_with_their_rules(replay: CommandLine) -> None:
    assert replay("policy", "replay", "--since", "1d") == 1
    assert replay.out.splitlines()[0] == "submissions: 3, refused: 1"
    assert replay.rows()[3] == ["share", "1", "0", "0", "1", "0"]
    last = replay.rows()[-1]
    assert (last[0], last[1], last[2]) == ("18", "alice", "vision")
    assert "GPUs running + pending: used 2, limit 3, requested 2." in replay.out


def test_json_has_the_whole_replay(replay: CommandLine) -> None:
    assert replay("policy", "replay", "--since", "1d", "--json") == 1
    answer = json.loads(replay.out)
    (refused,) = answer["refused"]
    assert (answer["submissions"], answer["advised"], answer["errors"]) == (3, 0, [])
    assert (refused["id"], refused["rules"], refused["nGPU"], refused["tasks"]) == ("18", ["share"], 2.0, 1)


def test_a_policy_without_refusals_exits_with_0(replay: CommandLine, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(POLICY.replace("gpus_total: 3", "gpus_total: 8"))
    assert replay("policy", "replay", str(other)) == 0


def test_starts_simulates_starts_under_limits_on_running_jobs(replay: CommandLine, tmp_path: Path) -> None:
    one_each = tmp_path / "one.yaml"
    one_each.write_text(
        "version: 1\nmode: enforce\nmanages: {accounts: [vision]}\ngroups: {vision: {accounts: [vision]}}\n"
        'rules:\n  - {id: one, for: vision, per: user, why: "One.", limits: {jobs_running: 1}}\n'
    )
    tres = {"cpu": 1.0, "mem": 1.0, "gres/gpu": 1.0}
    replay.database.runs = [
        make_run(
            id=str(n),
            job_id=n,
            tres_requested=tres,
            tres_allocated=tres,
            submit_s=START_S,
            eligible_s=START_S,
            start_s=START_S,
            end_s=START_S + 3600,
        )
        for n in (17, 18, 19)
    ]
    assert replay("policy", "replay", str(one_each), "--since", "1d", "--starts") == 0
    # The three jobs run one after the other, so they wait 0, 1 and 2 hours.
    assert ["vision", "3", "0.00", "1.00", "1.00", "1.00", "1.00"] in replay.rows()
    assert "Under the active policy: only 3 jobs to compare with the model; 30 are required" in replay.err
    assert replay("policy", "replay", str(one_each), "--since", "1d", "--starts", "--json") == 0
    answer = json.loads(replay.out)["starts"]
    assert answer["waits"]["vision"]["mean_h"] == pytest.approx(1, abs=0.01)
    assert answer["requeued"] == 0


def test_starts_leaves_out_refused_jobs(replay: CommandLine) -> None:
    assert replay("policy", "replay", "--since", "1d", "--starts", "--json") == 1
    answer = json.loads(replay.out)
    assert answer["starts"]["waits"]["all jobs"]["jobs"] == 2


def test_a_user_who_cannot_see_all_jobs_gets_an_error(replay: CommandLine) -> None:
    replay.database.runs.append(make_run(full=False))
    assert replay("policy", "replay") == 3
    assert "the jobs of all users" in replay.err


def test_jobs_on_loan_are_counted(replay: CommandLine, tmp_path: Path) -> None:
    lending = tmp_path / "lending.yaml"
    lending.write_text(
        "version: 1\nmode: enforce\nmanages: {qos: [sg-*], accounts: [other]}\n"
        "groups: {other: {accounts: [other]}}\n"
        "owners: {other: {gpus: 11, lend_in: sg-loans, return_within: 10m}}\nrules: []\n"
    )
    assert replay("policy", "replay", str(lending), "--since", "1d") == 0
    assert replay.out.splitlines() == [
        "submissions: 3, refused: 0",
        "on loan: 3 (they used 4.00 GPU-hours)",
    ]
    assert "owners: the replay lists jobs that would have borrowed" in replay.err
    assert replay("policy", "replay", str(lending), "--since", "1d", "--json") == 0
    answer = json.loads(replay.out)
    assert [(one["id"], one["qos"]) for one in answer["on_loan"]] == [
        ("17", "sg-loans"),
        ("18", "sg-loans"),
        ("19", "sg-loans"),
    ]
    assert answer["on_loan"][0].keys() == {
        "id",
        "user",
        "account",
        "tasks",
        "nGPU",
        "gpu_hours",
        "qos",
    }


def test_changed_jobs_are_counted_by_rule(replay: CommandLine, tmp_path: Path) -> None:
    fit = tmp_path / "fit.yaml"
    fit.write_text(
        "version: 1\ngroups: {vision: {accounts: [vision]}}\n"
        'rules:\n  - {id: all, for: vision, per: job, why: "So.", mode: fit, set: {partition: debug}}\n'
    )
    assert replay("policy", "replay", str(fit), "--since", "1d") == 0
    assert replay.out.splitlines()[:2] == ["submissions: 3, refused: 0", "changed: 3"]
    assert replay.rows()[-1] == ["all", "0", "0", "3", "2", "0"]
    replay("policy", "replay", str(fit), "--since", "1d", "--json")
    changed = json.loads(replay.out)["changed"]
    assert [one["changes"][0]["option"] for one in changed] == ["--partition=debug"] * 3
