"""`slurm-gpu explain JOBID` prints zones, scores, the owner's constraint, and reasons."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from slurm_gpu.cli.policy.explain_job import (
    ExplainedJob,
    SharingEnd,
    decision_of,
    lines,
    recorded_decision,
    token_of,
)
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.colocation.status import sharing_of
from slurm_gpu.policy.lua.decisions import find_decision, find_endings, write_ending

LINE = "slurm-gpu/1 1000 submit allow abc1 uid=1 account=a rules=- zone={zone}\n"


def explained(
    directory: Path,
    comment: str,
    features: str | None = "",
    state: str = "PENDING",
    *,
    is_logged: bool = False,
    n_nodes: int = 2,
) -> str:
    job = ExplainedJob(7, state, comment, features, n_nodes)
    token = token_of(comment)
    decision = None if token is None else find_decision(directory, token)
    return "\n".join(lines(decision_of(job, decision), n_nodes, is_logged=is_logged))


def test_the_zones_of_a_job_are_printed(tmp_path: Path) -> None:
    text = explained(
        tmp_path, "slurm-gpu/1 t=abc1 r=share z=zone1:700,zone2:40 by hand", "(a|b)&[zone2|zone1]"
    )
    assert text.splitlines() == [
        "Job 7  PENDING",
        "  Nearest limit when it was submitted: rule share",
        "  To keep its nodes close together, the job is kept in one zone: zone1 or zone2",
        "  Its constraint is (a|b)&[zone2|zone1]; its owner requested a|b.",
    ]


@pytest.mark.parametrize("features", ["a", "", "[zone1]"])
def test_a_removed_zone_constraint_is_reported(tmp_path: Path, features: str) -> None:
    text = explained(tmp_path, "slurm-gpu/1 t=abc1 z=zone1:700,zone2:40", features)
    assert text.endswith(
        "  The zone no longer applies: the wait ended, or the owner changed the constraint. "
        f"Constraint: {features or 'none'}."
    )


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        (
            "observe:zone1:700,zone2:40",
            "The job's nodes would be close together in one zone: zone1 or zone2",
        ),
        ("advise:-:constraint", "is not kept in one zone: zones cannot be added to its --constraint"),
        ("enforce:-:room", "is not kept in one zone: no zone is large enough for it"),
    ],
)
def test_decisions_are_read_from_the_log(tmp_path: Path, zone: str, words: str) -> None:
    (tmp_path / "decisions.log").write_text("half a line\n" + LINE.format(zone=zone))
    assert words in explained(tmp_path, "slurm-gpu/1 t=abc1")
    assert words not in explained(tmp_path, "slurm-gpu/1 t=other")


def test_a_recorded_decision_is_read_from_the_log_or_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = SimpleNamespace(operation="submit", at_s=1000, job={"uid": "1"}, scores="enforce:zone1:7")
    database = SimpleNamespace(decisions=lambda token: [reply] if token == "abc1" else [])
    site = CommandSite(config_path=tmp_path / "slurm-gpu.yaml")
    assert recorded_decision(site, tmp_path, "abc1", "slurm-gpu/1 t=abc1") == (None, ())
    monkeypatch.setattr(site, "database", lambda: nullcontext(database))
    recorded = {"uid": "1", "zone": "enforce:zone1:7"}
    assert recorded_decision(site, tmp_path, "abc1", "slurm-gpu/1 t=abc1") == (recorded, ())
    (tmp_path / "decisions.log").write_text(LINE.format(zone="enforce:-:room"))
    fields, ends = recorded_decision(site, tmp_path, "abc1", "slurm-gpu/1 t=abc1")
    assert (fields or {})["zone"] == "enforce:-:room"
    assert ends == ()


@pytest.mark.parametrize(("is_logged", "more"), [(True, False), (False, True)])
def test_without_the_log_it_names_users_who_can_see_more(tmp_path: Path, is_logged: bool, more: bool) -> None:
    found = explained(tmp_path, "slurm-gpu/1 t=abc1", is_logged=is_logged)
    assert found.endswith("  No zone was needed to keep its nodes close together.") is not more
    more_text = (
        "  Its record in Slurm names no zones.\n  Its owner, operators, and root on slurmctld's host may"
    )
    assert (more_text in found) is more


@pytest.mark.parametrize(
    ("is_logged", "line"),
    [
        (True, "  The policy accepted it without changes."),
        (False, "  Its owner, operators, and root on slurmctld's host may see more."),
    ],
)
def test_zones_are_not_mentioned_for_a_job_on_one_node(tmp_path: Path, is_logged: bool, line: str) -> None:
    found = explained(tmp_path, "slurm-gpu/1 t=abc1", is_logged=is_logged, n_nodes=1)
    assert found.splitlines() == ["Job 7  PENDING", line]
    limit = explained(tmp_path, "slurm-gpu/1 t=abc1 r=share", is_logged=True, n_nodes=1)
    assert limit.splitlines()[1:] == ["  Nearest limit when it was submitted: rule share"]


def test_a_rotated_log_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "decisions.log").write_text("")
    (tmp_path / "decisions.log.1").write_text(LINE.format(zone="enforce:-:room"))
    assert "no zone is large enough for it" in explained(tmp_path, "slurm-gpu/1 t=abc1")


def test_a_job_without_a_decision_is_reported(tmp_path: Path) -> None:
    assert explained(tmp_path, "by hand").endswith("accepted without slurm-gpu's job_submit.lua.")


def test_a_job_that_slurmctld_no_longer_has_is_shown_without_constraint(tmp_path: Path) -> None:
    assert explained(tmp_path, "slurm-gpu/1 t=abc1 z=zone1:700", None, "COMPLETED") == (
        "Job 7  COMPLETED\n  To keep its nodes close together, the job is kept in one zone: zone1"
    )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (
            "enforce:2/8:alice/my%20job",
            "was assigned 2 of the 8 shards of a GPU, as many as jobs of alice/my job need",
        ),
        ("observe:2/8:bert", "would have been assigned (mode: observe) 2 of the 8 shards"),
        ("enforce:-:array", "it does not share its GPU: array tasks cannot share GPUs"),
        ("enforce:-:what a later version says", "it does not share its GPU: "),
    ],
)
def test_the_decision_on_sharing_is_printed(tmp_path: Path, share: str, words: str) -> None:
    line = f"slurm-gpu/1 1000 submit allow abc1 uid=1 account=a rules=- share={quote(share, safe=':/')}\n"
    (tmp_path / "decisions.log").write_text(line)
    assert words in explained(tmp_path, "slurm-gpu/1 t=abc1", is_logged=True)


def test_sharing_is_read_from_the_comment_of_the_job(tmp_path: Path) -> None:
    text = explained(tmp_path, "slurm-gpu/1 t=abc1 c=2/8:bert r=share")
    assert "Sharing: it was assigned 2 of the 8 shards of a GPU, as many as jobs of bert need" in text


def test_co_runners_are_those_that_slurm_gpuctld_wrote(tmp_path: Path) -> None:
    path = tmp_path / "colocation.json"
    jobs = [{"job_id": number, "shards": 3, "speed": 0.93} for number in (7, 8)]
    gpus = [{"node": "n1", "index": 2, "jobs": jobs}]
    path.write_text(json.dumps({"version": 1, "as_of_s": 1000, "shards_per_gpu": 8, "gpus": gpus}))
    sharing = sharing_of(path, 7, 1010)
    decision = replace(decision_of(ExplainedJob(7, "RUNNING", "slurm-gpu/1 t=a", "", 1), {}), sharing=sharing)
    expected = "  It has 3 of 8 shards of GPU 2 on n1, with job 8; predicted speed: 0.93 of its speed alone"
    assert expected in lines(decision, 1, is_logged=True)
    assert sharing is not None
    in_trial = sharing._replace(is_trial=True)
    expected += "; this is a trial, because their speeds together are unmeasured"
    assert expected in lines(replace(decision, sharing=in_trial), 1, is_logged=True)
    path.write_text(path.read_text().replace("0.93}", '0.93, "trial": true}'))
    assert sharing_of(path, 7, 1010) == in_trial
    assert sharing_of(path, 7, 1100) is None  # the file is too old
    assert sharing_of(path, 9, 1010) is None
    path.write_text("{")
    assert sharing_of(path, 7, 1010) is None


def test_the_reason_for_the_end_of_sharing_is_printed(tmp_path: Path) -> None:
    (tmp_path / "decisions.log").write_text(LINE.format(zone="-"))
    why = "job 8 was slowed down by a factor of 1.67 with job 7, over the 1.1 promised"
    for at_s, token, job, other in ((2000, "abc1", 7, 8), (2000, "abc2", 8, 7)):
        fields = {"uid": "1", "job": str(job), "beside": str(other), "gone": "7", "why": why}
        write_ending(tmp_path, at_s, token, fields)
    for job_id, token, what in (
        (7, "abc1", "this job was requeued and will have a GPU to itself"),
        (8, "abc2", "job 7 was requeued, and this one kept running"),
    ):
        (line,) = find_endings(tmp_path, token)
        job = ExplainedJob(job_id, "RUNNING", f"slurm-gpu/1 t={token} c=2/8:bert", "", 1)
        ending = SharingEnd.of(line.at_s, line.fields)
        assert ending is not None
        text = "\n".join(lines(replace(decision_of(job, None), endings=(ending,)), 1, is_logged=True))
        assert f"  Sharing ended 1970-01-01 00:33:20: {why};\n    {what}" in text
    assert find_decision(tmp_path, "abc1") is not None  # the decision on the submission of the job
    assert find_decision(tmp_path, "abc2") is None


def test_an_incomplete_line_on_the_end_of_sharing_is_ignored() -> None:
    assert SharingEnd.of(1, {"beside": "7", "why": "x"}) is None
    assert SharingEnd.of(1, {"beside": "7", "gone": "me", "why": "x"}) is None


def test_the_options_that_rules_set_are_printed(tmp_path: Path) -> None:
    changes = "short:fit:--partition%3Ddebug%3Bnodes:observe:--nodes%3D2"
    (tmp_path / "decisions.log").write_text(
        LINE.format(zone="enforce:-:room").replace("rules=-", f"rules=- changes={changes}")
    )
    assert explained(tmp_path, "slurm-gpu/1 t=abc1", is_logged=True).splitlines()[1:3] == [
        "  At submission, rule short set --partition=debug",
        "  At submission, rule nodes would set --nodes=2 (mode: observe)",
    ]
