"""Where a job runs that names no QOS: on its own GPUs, on unowned ones, or on loan; and what it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.check import check_policy
from slurm_gpu.policy.install import try_bundle
from slurm_gpu.policy.luadata import Plain
from slurm_gpu.policy.names import resolve_names
from slurm_gpu.policy.script import EMPTY_DESCRIPTION, LUA_VERSIONS, PolicyScript, Verdict
from slurm_gpu.yamlsource import parse_yaml

from .model import Request
from .render import PARTITIONS, description, record
from .users import Directory

POLICY = """\
version: 1
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
) -> Verdict:
    script = PolicyScript(build_bundle(compiled(**(facts or {}))), lua=lua)
    return script.submit({**description(request), "qos": None, **fields}, PARTITIONS)  # type: ignore[dict-item]


def said(verdict: Verdict) -> str:
    return " ".join(" ".join(verdict.messages).split())


def place(account: str, gpus: int) -> str | None:
    """The QOS that a job gets that names none: what the Lua must agree with."""
    own = {"vision": 8, "nlp": 2}.get(account, 0)
    unowned = 16 - 8 - 2
    if gpus == 0:
        return None
    if gpus <= own:
        return f"sg-{account}"
    return None if gpus <= unowned else "sg-loans"


@given(
    account=st.sampled_from(["vision", "nlp", "other"]),
    gpus=st.integers(0, 12),
    lua=st.sampled_from(LUA_VERSIONS),
)
def test_a_job_that_names_no_qos_gets_gpus_that_could_ever_hold_it(account: str, gpus: int, lua: str) -> None:
    verdict = submit(Request(uid=1002, account=account, per_job=gpus or None), lua)
    assert verdict.accepted
    assert verdict.desc.get("qos") == place(account, gpus)
    assert ("borrows" in said(verdict)) == (place(account, gpus) == "sg-loans")


def test_whoever_borrows_is_told_what_that_means() -> None:
    verdict = submit(replace(BOB, per_job=8))
    assert said(verdict) == (
        "This job asks for more GPUs than its account owns (0) or nobody does (6), so it borrows idle GPUs "
        "of vision, nlp (QOS sg-loans). When their owner needs them, they go back within 30 min, and it is "
        "requeued."
    )
    assert " l=vision,nlp " in f"{verdict.desc['admin_comment']} "


def test_a_job_that_names_a_qos_has_it() -> None:
    asked = submit(replace(BOB, per_job=1), qos="SG-Loans")
    assert said(asked).startswith("This job borrows idle GPUs of vision, nlp (QOS sg-loans).")
    assert asked.desc["qos"] == "SG-Loans"
    other = submit(Request(uid=1001, account="vision", per_job=12), qos="long")
    assert (other.desc["qos"], said(other)) == ("long", "")
    assert "l=" not in str(other.desc["admin_comment"])


@pytest.mark.parametrize(
    ("fields", "facts", "end"),
    [
        ({"requeue": 0}, {}, "Without --requeue it is cancelled then."),
        ({"requeue": 65534}, {"requeues": False}, "Without --requeue it is cancelled then."),
        ({"requeue": 1}, {"requeues": False}, "it is requeued."),
        ({"script": None, "argc": 0}, {}, "A job of salloc cannot be requeued: it is cancelled then."),
        ({"script": None, "argc": 1}, {}, "A job of srun cannot be requeued: it is cancelled then."),
    ],
)  # fmt: skip
def test_what_cannot_be_requeued_is_told_so(
    fields: dict[str, object], facts: dict[str, object], end: str
) -> None:
    assert said(submit(replace(BOB, per_job=8), facts=facts, **fields)).endswith(end)


def test_rules_for_the_qos_of_loans_bind_whoever_is_put_there() -> None:
    verdict = submit(replace(BOB, per_job=14))
    assert not verdict.accepted
    assert "Refused by rule loans: Few at a time." in said(verdict)
    assert "borrows" not in said(verdict)


def test_a_job_that_is_changed_stays_where_it_is() -> None:
    script = PolicyScript(build_bundle(compiled()))
    job = record(1, replace(BOB, per_job=1))
    script.set_jobs([job])
    verdict = script.modify({**EMPTY_DESCRIPTION, "tres_per_job": "gres:gpu:8"}, job, PARTITIONS)
    assert verdict.accepted
    assert verdict.desc.get("qos") is None


def test_nothing_is_lent_where_there_are_no_qos() -> None:
    verdict = submit(replace(BOB, per_job=8), facts={"has_qos": False})
    assert (verdict.desc.get("qos"), said(verdict)) == (None, "")


def test_the_bundle_passes_its_trial() -> None:
    table = compiled()
    try_bundle(table, build_bundle(table))
