"""A job that names no QOS uses its account's GPUs, unowned ones or a loan, and its user gets a message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision

from .fuzzing import examples
from .model import Request
from .render import PARTITIONS, description, record
from .test_messages import sbatch_words
from .users import Directory

POLICY = """\
version: 1
mode: enforce
manages: {qos: [sg-*], accounts: [vision, nlp]}
groups:
  vision: {accounts: [vision]}
  nlp: {accounts: [nlp]}
  borrowers: {qos: [sg-loans]}
owners:
  vision: {gpus: 8, lend_in: sg-loans, return_within: 10m}
  nlp: {gpus: 2, lend_in: sg-loans, return_within: 30m}
rules:
  - {id: loans, for: borrowers, per: job, why: "Few at a time.", limits: {gpus: 12}}
"""
BOB = Request(uid=1002, account="other")


def compiled(text: str = POLICY, **facts: object) -> dict[str, Plain]:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    known = SiteFacts(n_gpus=16, run_directory=Path("/nonexistent"))
    return compile_policy(policy, names, replace(known, **facts))  # type: ignore[arg-type]


def submit(
    request: Request, lua: str = "5.1", facts: dict[str, object] | None = None, **fields: object
) -> ScriptDecision:
    script = PolicyScript(build_bundle(compiled(**(facts or {}))), lua=lua)
    return script.submit({**description(request), "qos": None, **fields}, PARTITIONS)  # type: ignore[dict-item]


BUNDLE = build_bundle(compiled())


def text_of(verdict: ScriptDecision) -> str:
    return " ".join(" ".join(verdict.messages).split())


@dataclass(frozen=True)
class OwnerModel:
    """One owner in the independent model of the Lua."""

    name: str
    gpus: int
    lend_in: str


def expected_qos(owners: Sequence[OwnerModel], n_gpus: int, account: str, gpus: int) -> str | None:
    """Return the QOS of a job that names none."""
    own = sum(owner.gpus for owner in owners if owner.name == account)
    if gpus == 0:
        return None
    if gpus <= own:
        return f"sg-{account}"
    unowned = n_gpus - sum(owner.gpus for owner in owners)
    return None if gpus <= unowned else owners[0].lend_in


@st.composite
def owner_lists(draw: st.DrawFn) -> list[OwnerModel]:
    names = draw(st.lists(st.sampled_from(["vision", "nlp", "cv"]), min_size=1, max_size=3, unique=True))
    loans = st.sampled_from(["sg-loans", "sg-more"])
    return [OwnerModel(name, draw(st.integers(1, 20)), draw(loans)) for name in names]


@settings(max_examples=examples(40, one_in=50), deadline=None)
@given(
    owners=owner_lists(),
    n_gpus=st.integers(1, 40),
    account=st.sampled_from(["vision", "nlp", "cv", "other"]),
    gpus=st.integers(0, 40),
    asked=st.sampled_from([None, "", "normal", "sg-vision", "SG-loans", "sg-more"]),
    lua=st.sampled_from(LUA_VERSIONS),
)
def test_a_job_gets_the_qos_of_gpus_on_which_it_fits(
    owners: list[OwnerModel], n_gpus: int, account: str, gpus: int, asked: str | None, lua: str
) -> None:
    lines = [
        f"  {one.name}: {{gpus: {one.gpus}, lend_in: {one.lend_in}, return_within: 1h}}" for one in owners
    ]
    groups = "".join(f"  {one.name}: {{accounts: [{one.name}]}}\n" for one in owners)
    text = f"version: 1\nmanages: {{qos: [sg-*]}}\ngroups:\n{groups}owners:\n" + "\n".join(lines)
    script = PolicyScript(build_bundle(compiled(text, n_gpus=n_gpus)), lua=lua)
    request = Request(uid=1002, account=account, per_job=gpus or None)
    verdict = script.submit({**description(request), "qos": asked}, PARTITIONS)
    assert verdict.accepted
    expected = asked or expected_qos(owners, n_gpus, account, gpus)
    assert (verdict.desc.get("qos") or None) == expected
    lenders = [one.name for one in owners if one.lend_in == (expected or "").lower()]
    borrows = bool(lenders) and gpus > 0
    assert ("borrows" in text_of(verdict)) == borrows
    assert (f" l={','.join(lenders)}" in str(verdict.desc["admin_comment"])) == borrows


# Values that slurmctld may pass and users may type.
HOSTILE = st.sampled_from(
    ["", "%s%d", "normal", "sg-loans", "SG-LOANS\n", "\x00", "a" * 300, "'; os.exit(3)", None, 7, 1e300]
)


@settings(max_examples=examples(60, one_in=25), deadline=None)
@given(
    account=HOSTILE,
    qos=HOSTILE,
    requeue=st.sampled_from([0, 1, 65534, 65535, -1, 1e300, "x", None]),
    gpus=st.sampled_from(["gres:gpu:99999999999", "gres:gpu:8", "gres/gpu:-1", "gpu:%s", "", None]),
    argc=HOSTILE,
    lua=st.sampled_from(LUA_VERSIONS),
)
def test_the_script_never_fails(
    account: object, qos: object, requeue: object, gpus: object, argc: object, lua: str
) -> None:
    fields = {"account": account, "qos": qos, "requeue": requeue, "tres_per_job": gpus, "argc": argc}
    script = PolicyScript(BUNDLE, lua=lua)
    verdict = script.submit({**description(BOB), **fields, "script": None}, PARTITIONS)  # type: ignore[dict-item]
    assert [text for level, text in verdict.log if level == "error"] == []


def test_a_borrowing_job_gets_a_message_with_the_consequences() -> None:
    verdict = submit(replace(BOB, per_job=8))
    assert text_of(verdict) == (
        "This job requests more GPUs than its account owns (0) and more than are unowned (6), so it "
        "borrows idle GPUs of vision, nlp (QOS sg-loans). Owners can reclaim them within "
        "30 min; the job is then requeued."
    )
    assert " l=vision,nlp " in f"{verdict.desc['admin_comment']} "


def test_a_job_that_names_a_qos_keeps_it() -> None:
    asked = submit(replace(BOB, per_job=1), qos="SG-Loans")
    assert text_of(asked).startswith("This job borrows idle GPUs of vision, nlp (QOS sg-loans).")
    assert asked.desc["qos"] == "SG-Loans"
    other = submit(Request(uid=1001, account="vision", per_job=12), qos="long")
    assert (other.desc["qos"], text_of(other)) == ("long", "")
    assert "l=" not in str(other.desc["admin_comment"])


def test_a_job_that_names_several_qos_gets_a_message_that_it_may_borrow() -> None:
    """The AdminComment names no lenders, because the job may not borrow after all.

    Slurm accepts several QOS from 24.11 on.
    """
    asked = submit(Request(uid=1001, account="vision", per_job=2), qos="sg-vision,SG-loans")
    assert text_of(asked).startswith(
        "This job may borrow idle GPUs of vision, nlp (QOS sg-loans). Owners can"
    )
    assert "l=" not in str(asked.desc["admin_comment"])
    only_loans = submit(replace(BOB, per_job=1), qos="sg-loans,sg-loans")
    assert text_of(only_loans).startswith("This job borrows idle GPUs of vision, nlp (QOS sg-loans).")
    assert " l=vision,nlp " in f"{only_loans.desc['admin_comment']} "
    assert text_of(submit(replace(BOB, per_job=1), qos="normal,long")) == ""


@pytest.mark.parametrize(
    ("fields", "facts", "end"),
    [
        ({"requeue": 0}, {}, "cancelled; add --requeue to have it requeued instead."),
        ({"requeue": 65534}, {"requeues": False}, "cancelled; add --requeue to have it requeued instead."),
        ({"requeue": 1}, {"requeues": False}, "the job is then requeued."),
        ({"script": None, "argc": 0}, {}, "cancelled; salloc jobs cannot be requeued."),
        ({"script": None, "argc": 1}, {}, "cancelled; srun jobs cannot be requeued."),
    ],
)
def test_the_message_states_that_the_job_cannot_be_requeued(
    fields: dict[str, object], facts: dict[str, object], end: str
) -> None:
    assert text_of(submit(replace(BOB, per_job=8), facts=facts, **fields)).endswith(end)


def test_rules_for_the_qos_of_loans_bind_jobs_that_are_assigned_to_it() -> None:
    verdict = submit(replace(BOB, per_job=14))
    assert not verdict.accepted
    assert "Refused by rule loans: Few at a time." in text_of(verdict)
    assert "borrows" not in text_of(verdict)


def commands(verdict: ScriptDecision) -> list[str]:
    """Return the commands that a refusal advises."""
    return re.findall(r"sbatch --\S.*? \.\.\.", text_of(verdict))


@pytest.mark.parametrize(
    ("asked", "advised"),
    [
        (Request(uid=1002, account="vision", per_job=14), ["--gpus=12", "--gpus=8"]),
        (Request(uid=1002, account="vision", per_node=4, nodes=4), ["--nodes=3", "--nodes=2"]),
        (Request(uid=1002, account="vision", per_task=2, n_tasks=7), ["--ntasks=6", "--ntasks=4"]),
        (Request(uid=1002, account="nlp", per_job=14), ["--gpus=12", "--gpus=6"]),
        (
            Request(uid=1002, account="other", per_node=8, nodes=2),
            ["--nodes=1", "--nodes=1 --gres=gpu:a100:6"],
        ),
    ],
    ids=str,
)
def test_advice_to_borrow_has_an_alternative_without_a_loan(asked: Request, advised: list[str]) -> None:
    refusal = submit(asked)
    assert not refusal.accepted
    assert commands(refusal) == [f"sbatch {options} ..." for options in advised]
    assert "This job would borrow GPUs. To borrow none, try: sbatch" in text_of(refusal)
    script = PolicyScript(BUNDLE)
    for options, borrows in zip(advised, (True, False), strict=True):
        words = [*sbatch_words(asked)[:-1], *options.split(), "--wrap=true"]
        desc = parse_command(["sbatch", *words], {}).description(1002, "bob")
        verdict = script.submit(desc, PARTITIONS)
        assert verdict.accepted
        assert ("borrows" in text_of(verdict)) == borrows


def test_advice_to_borrow_has_no_alternative_if_all_gpus_have_other_owners() -> None:
    refusal = submit(replace(BOB, per_job=14), facts={"n_gpus": 10})
    assert commands(refusal) == ["sbatch --gpus=12 ..."]
    assert "  This job would borrow GPUs." in refusal.messages


def test_advice_for_a_job_that_names_the_qos_of_loans_is_one_command() -> None:
    refusal = submit(replace(BOB, per_job=14), qos="sg-loans")
    assert commands(refusal) == ["sbatch --gpus=12 ..."]
    assert "would borrow" not in text_of(refusal)


def test_a_job_that_may_not_borrow_more_is_advised_to_borrow_none() -> None:
    text = POLICY.replace("per: job", "per: user").replace("gpus: 12", "gpus_total: 12")
    script = PolicyScript(build_bundle(compiled(text)))
    vision = Request(uid=1002, account="vision", per_job=12)
    script.set_jobs([record(1, replace(vision, qos="sg-loans"))])
    refusal = script.submit({**description(vision), "qos": None}, PARTITIONS)
    assert not refusal.accepted
    assert commands(refusal) == ["sbatch --gpus=8 ..."]
    assert "would borrow" not in text_of(refusal)


def test_an_update_does_not_change_the_qos() -> None:
    script = PolicyScript(build_bundle(compiled()))
    job = record(1, replace(BOB, per_job=1))
    script.set_jobs([job])
    verdict = script.modify({"tres_per_job": "gres:gpu:8"}, job, PARTITIONS)
    assert verdict.accepted
    assert verdict.desc.get("qos") is None


def test_nothing_is_lent_without_qos() -> None:
    verdict = submit(replace(BOB, per_job=8), facts={"has_qos": False})
    assert (verdict.desc.get("qos"), text_of(verdict)) == (None, "")


def test_the_bundle_passes_its_trial() -> None:
    table = compiled()
    try_bundle(table, build_bundle(table))
