"""Diagnosed faults of training runs are reported once, with the evidence, if the site requests it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.controller.notices import status
from slurm_gpu.wire.answers.verdicts import JobVerdict

from .world import NOON_S, SETTINGS, World

ASKED = f"{SETTINGS}alerts: [unhealthy, used_then_idle]\n"


def verdict(job_id: int = 17, **given: Any) -> JobVerdict:
    values: dict[str, Any] = {
        "job_id": job_id,
        "start_s": NOON_S,
        "user": "alice",
        "cause": "slow or failing",
        "kind": "clock",
        "confidence": 0.91,
        "devices": (("n2", "GPU-17-1"),),
        "nodes": (),
        "since_s": None,
        "reported_at_s": NOON_S + 600,
        "last_s": NOON_S + 660,
        "verdict": {
            "coverage": 0.97,
            "evidence": [{"text": "n2 GPU 1: SM clock 76%, its 7 peers 95%", "workers": ["n2 GPU 1"]}],
            "next_step": "Exclude the node (sbatch --exclude).",
        },
    }
    return JobVerdict(**{**values, **given})


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.settings.write_text(ASKED)
    world.rule = None
    world.hold(17, util_pct=90.0, used=True)
    world.found = [verdict()]
    return world


def test_a_lasting_diagnosis_is_sent_once(world: World) -> None:
    world.run_for(120)
    assert world.reported() == [(40, "unhealthy")], "half an hour after the diagnosis, not after its start"
    body = world.sent[0][1].text.body
    words = " ".join(body.split())
    assert "slow or failing (clock), 91% confidence: n2 GPU 1: SM clock 76%, its 7 peers 95%" in words
    assert "\n      Exclude the node (sbatch --exclude).\n" in body
    assert "slurm-gpu diagnose 17" in body
    assert world.commands == []


def test_evidence_that_does_not_name_the_gpu_follows_its_name(world: World) -> None:
    stalled = {"text": "nothing computed for 700 s", "workers": ["n2 GPU 1"]}
    world.found = [verdict(verdict={"coverage": 0.97, "evidence": [stalled], "next_step": ""})]
    world.run_for(120)
    body = world.sent[0][1].text.body
    assert "91% confidence: n2 GPU-17-1; nothing computed for 700 s" in " ".join(body.split())


def test_diagnoses_are_sent_only_if_the_site_requests_them(world: World) -> None:
    world.settings.write_text(SETTINGS)
    world.run_for(120)
    assert world.reported() == []


def test_a_brief_diagnosis_is_not_sent(world: World) -> None:
    world.run_for(30)
    world.found = []
    world.run_for(60)
    assert world.reported() == []


def test_below_the_coverage_nothing_is_sent(world: World) -> None:
    for coverage in (0.79, None):
        world.found = [verdict(verdict={"coverage": coverage, "evidence": [], "next_step": ""})]
        world.run_for(60)
        assert world.reported() == []


def test_diagnoses_of_another_run_are_not_sent(world: World) -> None:
    world.found = [verdict(start_s=NOON_S - 9000)]
    world.run_for(60)
    assert world.reported() == []


def test_an_idle_job_gets_no_diagnosis_in_addition(world: World) -> None:
    world.found = [verdict(cause="hang", kind="", reported_at_s=NOON_S + 60)]
    world.run_for(2)
    world.hold(17, util_pct=0.0, used=True)
    world.run_for(60)
    assert [kind for _, kind in world.reported()] == ["used_then_idle"]


def test_a_diagnosis_counts_among_the_messages_of_a_day(world: World) -> None:
    world.settings.write_text(f"{ASKED}max_per_user_per_day: 1\n")
    world.hold(18, util_pct=90.0, used=True)
    world.found = [verdict(), verdict(18, reported_at_s=NOON_S + 1800)]
    world.run_for(120)
    assert world.reported() == [(40, "unhealthy")]
    seen = status.read(world.directory / status.FILE_NAME)
    assert seen is not None
    (line,) = [line for line in seen.outlook if line.job_id == 18]
    assert "max_per_user_per_day is reached" in line.outcome


def test_with_an_older_slurm_gpudbd_other_notices_are_sent(world: World) -> None:
    world.found = None
    world.hold(17, util_pct=0.0, used=True)
    world.run_for(60)
    assert [kind for _, kind in world.reported()] == ["used_then_idle"]
