"""`slurm-gpu audit` lists the changes to the cluster, the newest last."""

from __future__ import annotations

import json
from dataclasses import replace

from slurm_gpu.client.database_client import AuditEvent, Decision
from slurm_gpu.wire.answers.reservation import MOST_IDS, Reservation, ReservationState
from tests.cli.conftest import CommandLine
from tests.slurm.recorded import NOW_S

URGENT = AuditEvent(
    id="1" * 32,
    at_s=NOW_S - 60,
    host="head",
    action="urgent job started",
    subject="job 7 of alice",
    why="a \x1b[1m deadline",
    new="overtook 2 jobs; requeued for it: 5",
    evidence={"job_id": 7},
    reported_by="slurm",
)
MOVED = AuditEvent(
    id="2" * 32, at_s=NOW_S, host="head", action="limit moved", subject="share", why="w", old="1", new="2"
)
REQUESTED = Reservation(
    id=7,
    cluster="neuron",
    user="alice",
    account="vision",
    partition="gpu",
    gpus=8,
    n_nodes=2,
    duration_s=86400,
    earliest_s=NOW_S,
    why="the paper",
    state=ReservationState.REQUESTED,
    requested_s=NOW_S,
)


def test_the_latest_event_is_last_and_control_characters_are_replaced(slurm_gpu: CommandLine):
    slurm_gpu.database.act_list = [MOVED, URGENT]
    assert slurm_gpu("audit") == 0
    lines = slurm_gpu.out.splitlines()
    assert lines[0].split() == ["when", "action", "subject", "before", "after", "why", "reported", "by"]
    assert "job 7 of alice" in lines[1]
    assert "\x1b" not in slurm_gpu.out
    assert "limit moved" in lines[-1]


def test_one_kind_of_event_as_json_with_its_evidence(slurm_gpu: CommandLine):
    slurm_gpu.database.act_list = [MOVED, URGENT]
    assert slurm_gpu("audit", "--action", "urgent", "--json") == 0
    (act,) = json.loads(slurm_gpu.out)["audit"]
    assert act["evidence"] == {"job_id": 7}


def test_an_empty_list_prints_a_remark(slurm_gpu: CommandLine):
    assert slurm_gpu("audit") == 0
    assert slurm_gpu("audit", "--action", "urgent") == 0
    assert (slurm_gpu.out, "no such action is recorded" in slurm_gpu.err) == ("", True)


def test_a_reservation_is_shown_with_its_user(slurm_gpu: CommandLine):
    made = replace(MOVED, action="reservation made", subject="sg_7")
    slurm_gpu.database.act_list = [made, replace(made, subject="sg_8"), replace(made, subject="sg_7a")]
    slurm_gpu.database.reserved = [REQUESTED]
    assert slurm_gpu("audit") == 0
    *others, named = (line.split("reservation made")[1].split() for line in slurm_gpu.out.splitlines()[1:])
    assert [words[:2] for words in others] == [["sg_7a", "1"], ["sg_8", "1"]]
    assert named[:3] == ["sg_7", "of", "alice"]
    slurm_gpu.database.reserved = None
    assert slurm_gpu("audit") == 0
    assert "of alice" not in slurm_gpu.out


def test_a_truncated_list_prints_a_remark(slurm_gpu: CommandLine):
    slurm_gpu.database.act_list = [replace(MOVED, id=f"{n:032x}", at_s=NOW_S - n) for n in range(21)]
    assert slurm_gpu("audit") == 0
    assert len(slurm_gpu.rows()) == 21
    assert "only the latest 20 are shown; --limit 200 shows more" in slurm_gpu.err
    assert slurm_gpu("audit", "--limit", "21") == 0
    assert (len(slurm_gpu.rows()), slurm_gpu.err) == (22, "")
    assert slurm_gpu("audit", "--action", "limit", "--limit", "3", "--json") == 0
    assert len(json.loads(slurm_gpu.out)["audit"]) == 3
    assert "--limit 30 shows more" in slurm_gpu.err
    slurm_gpu.database.act_list *= 50
    assert slurm_gpu("audit", "--action", "urgent") == 0
    assert "only the latest 1000 were searched" in slurm_gpu.err


REFUSED = Decision(
    id="3" * 32,
    at_s=NOW_S,
    host="head",
    operation="submit",
    verdict="deny",
    uid=0,
    rules="share:gpus_total:observe,urgent:who:enforce",
    job={"account": "nlp", "mgpu": "2500", "urgent": "please"},
)


def test_refused_urgent_jobs_are_listed_with_user_and_reason(slurm_gpu: CommandLine):
    unknown = replace(REFUSED, at_s=NOW_S - 5, uid=4_000_000_000, job={"urgent": "\x1b[1m"}, rules=None)
    slurm_gpu.database.refused = [REFUSED, unknown]
    assert slurm_gpu("audit", "--refused", "urgent") == 0
    first, last = slurm_gpu.rows()[1:]
    assert last[2:] == ["root", "nlp", "2.5", "submit", "urgent", "please"]
    assert first[2:7] == ["uid", "4000000000", "–", "–", "submit"]
    assert "\x1b" not in slurm_gpu.out
    assert slurm_gpu.database.asked == {"rule": "urgent"}
    assert slurm_gpu("audit", "--refused", "urgent", "--json", "--limit", "1") == 0
    assert [one["id"] for one in json.loads(slurm_gpu.out)["refused"]] == [REFUSED.id]
    assert "--limit 10 shows more" in slurm_gpu.err


def test_an_empty_list_of_refusals_prints_a_remark(slurm_gpu: CommandLine):
    assert slurm_gpu("audit", "--refused", "urgent") == 0
    assert "no recorded job was refused by rule urgent" in slurm_gpu.err
    assert slurm_gpu("audit", "--refused", "urgent", "--action", "limit") == 2


def test_any_number_of_reservations_is_shown_with_users(slurm_gpu: CommandLine):
    """slurm-gpudbd accepts at most MOST_IDS ids per request."""
    numbers = range(1, MOST_IDS + 101)
    slurm_gpu.database.reserved = [replace(REQUESTED, id=number) for number in numbers]
    slurm_gpu.database.act_list = [
        replace(MOVED, id=f"{number:032x}", action="reservation approved", subject=f"sg_{number}")
        for number in reversed(numbers)
    ]
    assert slurm_gpu("audit", "--limit", "1000") == 0
    assert slurm_gpu.out.count(" of alice") == len(numbers)
