"""Conditions on QOS use the QOS that Slurm assigns to a job, whether or not the job names it."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, record

SOLO = RuleModel("solo", "job", qos=frozenset({"solo"}), limits={"gpus": 1000})
NORMAL = RuleModel("normal", "job", qos=frozenset({"normal"}), limits={"gpus": 3000})


@pytest.mark.parametrize(
    ("named", "default", "usable", "most"),
    [
        ("solo", "normal", "normal,solo", 1),
        (None, "Solo", "normal,solo", 1),
        (None, None, "solo", 1),
        (None, None, "normal,solo", 3),
        (None, None, None, 3),
        ("normal", None, "solo", 3),
    ],
)
def test_the_qos_is_the_named_the_default_or_the_only_one(
    named: str | None, default: str | None, usable: str | None, most: int
) -> None:
    """With several usable QOS and no default, Slurm uses `normal`."""
    script = PolicyScript(build_bundle(compiled([SOLO, NORMAL], "/nonexistent/decisions.log")))

    def accepted(gpus: int) -> bool:
        desc = description(Request(uid=1001, account="vision", per_job=gpus))
        fields = {"qos": named, "default_qos": default, "assoc_qos": usable}
        return script.submit(desc | fields, PARTITIONS).accepted

    assert accepted(most)
    assert not accepted(most + 1)


# From Slurm 24.11 on, a job can name several QOS, joined by commas, and runs in the first that permits it.

FEW_SOLO = RuleModel("few", "group", qos=frozenset({"solo"}), limits={"gpus_total": 4000})
ALICE = Request(uid=1001, account="vision", per_job=3)


def script() -> PolicyScript:
    return PolicyScript(build_bundle(compiled([FEW_SOLO], "/nonexistent/decisions.log")))


def ask(policy: PolicyScript, qos: str, gpus: int = 3) -> str | None:
    """Return the AdminComment of an accepted job, None for a refused one."""
    desc = description(Request(uid=1001, account="vision", per_job=gpus)) | {"qos": qos}
    verdict = policy.submit(desc, PARTITIONS)
    return str(verdict.desc["admin_comment"]) if verdict.accepted else None


@pytest.mark.parametrize("qos", ["normal,solo", "solo,normal", "Long,SOLO,normal", ",solo,"])
def test_a_job_with_several_qos_is_subject_to_the_rules_of_each(qos: str) -> None:
    assert ask(script(), qos, 4)
    assert not ask(script(), qos, 5)
    assert ask(script(), "long,normal", 5)


def test_each_qos_of_a_job_must_be_allowed() -> None:
    rule = RuleModel("own", "job", limits={"qos": frozenset({"solo", "normal"})})
    own = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    assert ask(own, "SOLO,normal")
    assert not ask(own, "solo,long")
    desc = description(Request(uid=1001, account="vision")) | {"qos": "long", "assoc_qos": "long,solo"}
    assert any("Try: sbatch --qos=solo ..." in line for line in own.submit(desc, PARTITIONS).messages)


def test_a_pending_job_counts_in_each_of_its_qos() -> None:
    """slurm.jobs has the QOS that slurmctld tried last; the AdminComment has the requested ones."""
    comment = ask(script(), "normal,Solo")
    assert " q=normal,solo" in str(comment)
    for qos in ("normal", "solo"):
        policy = script()
        policy.set_jobs([record(1, ALICE, qos=qos, admin_comment=comment)])
        assert ask(policy, "solo", 1)
        assert not ask(policy, "solo", 2)


def test_a_running_job_counts_in_its_current_qos() -> None:
    comment = ask(script(), "normal,solo")
    for qos, more_solo in (("normal", 4), ("solo", 1)):
        policy = script()
        policy.set_jobs([record(1, ALICE, running=True, qos=qos, admin_comment=comment)])
        assert ask(policy, "solo", more_solo)
        assert not ask(policy, "solo", more_solo + 1)


@pytest.mark.parametrize(
    "comment",
    [
        "slurm-gpu/1 t=abc q=normal,solo r=few",
        "slurm-gpu/1 t=abc r=few q=long,solo",  # added by hand after the fields of the script
        "slurm-gpu/1 t=abc r=few",
    ],
)
def test_a_job_moved_to_another_qos_counts_there(comment: str) -> None:
    policy = script()
    policy.set_jobs([record(1, ALICE, qos="long", admin_comment=comment)])
    assert ask(policy, "solo", 4)


def test_a_job_moved_to_several_qos_is_subject_to_the_rules_of_each() -> None:
    policy = script()
    others = record(2, ALICE, qos="solo")
    mine = record(1, ALICE, qos="normal")
    policy.set_jobs([mine, others])
    nothing = dict.fromkeys(description(ALICE))
    assert not policy.modify({**nothing, "qos": "normal,solo"}, mine, PARTITIONS, 1001).accepted
    assert policy.modify({**nothing, "qos": "normal,long"}, mine, PARTITIONS, 1001).accepted


def test_an_update_of_a_job_with_several_qos_is_judged_in_each() -> None:
    """The job record has only the QOS that slurmctld tried last."""
    nlp = RuleModel("nlp", "job", accounts=frozenset({"nlp"}), qos=frozenset({"solo"}), limits={"gpus": 2000})
    policy = PolicyScript(build_bundle(compiled([nlp], "/nonexistent/decisions.log")))
    mine = record(1, ALICE, qos="normal", admin_comment=ask(policy, "normal,solo"))
    policy.set_jobs([mine])
    nothing = dict.fromkeys(description(ALICE))
    assert not policy.modify({**nothing, "account": "nlp"}, mine, PARTITIONS, 1001).accepted
    assert policy.modify({**nothing, "account": "nlp", "qos": "normal"}, mine, PARTITIONS, 1001).accepted
