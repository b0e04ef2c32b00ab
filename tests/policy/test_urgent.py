"""`urgent:` in policy.yaml lets some users submit urgent jobs, refuses others, and sets native limits."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.decisions import DecisionLine
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.installed import policy_of
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision
from slurm_gpu.policy.lua.urgent import POINTS
from slurm_gpu.policy.native.plan import NO_URGENT, NativePlan, plan_native
from slurm_gpu.policy.native.urgent import lacks
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import render_text

from .checking import check, mistakes
from .limitstore import MemoryStore, qos
from .model import Request
from .nativepolicies import load
from .render import PARTITIONS, description, record
from .test_native_lending import ASSOCIATIONS, settings
from .users import UIDS, Directory

POLICY = """\
version: 1
mode: enforce
contact: gpu-help
manages: {qos: [urgent, normal], accounts: [vision, nlp]}
groups:
  leads: {users: [alice]}
  oncall: {unix_groups: [undergrad], accounts: [nlp]}
  everyone: {}
urgent: {for: [leads, oncall], jobs_running: 2, preempts: [normal], why: "Deadlines, and outages."}
rules:
  - {id: size, for: everyone, per: job, why: "Others.", limits: {gpus: 4}}
"""
WHY = "CVPR is on Friday"
ALICE, BOB = UIDS["alice"], UIDS["bob"]


def compiled(text: str = POLICY, **facts: object) -> dict[str, Plain]:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    known = SiteFacts(n_gpus=16, run_directory=Path("/nonexistent"))
    return compile_policy(policy, names, replace(known, **facts))  # type: ignore[arg-type]


def submit(
    uid: int, account: str = "vision", gpus: int = 1, lua: str = "5.1", text: str = POLICY, **fields: object
) -> ScriptDecision:
    script = PolicyScript(build_bundle(compiled(text)), lua=lua)
    asked = description(Request(uid=uid, account=account, per_job=gpus))
    return script.submit({**asked, "qos": "urgent", **fields}, PARTITIONS)  # type: ignore[dict-item]


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_an_urgent_job_gets_the_highest_site_factor(lua: str) -> None:
    verdict = submit(ALICE, lua=lua, comment=WHY)
    assert (verdict.accepted, verdict.messages) == (True, ())
    assert verdict.desc["site_factor"] == POINTS
    assert "priority" not in verdict.desc  # a fixed priority would stop Slurm's ageing


def test_a_refused_urgent_job_names_the_allowed_users_and_the_limit() -> None:
    verdict = submit(BOB, comment=WHY)
    assert not verdict.accepted
    opening, *numbers, contact = verdict.messages
    assert opening == "Refused by rule urgent: Deadlines, and outages."
    assert " ".join(" ".join(numbers).split()) == (
        "Urgent jobs (--qos=urgent) are allowed for: alice; members of undergrad in account nlp. "
        "At most 2 may run at once; others wait."
    )
    assert contact == "  Questions: gpu-help"


@pytest.mark.parametrize("comment", [None, "", "  "])
def test_an_urgent_job_needs_a_reason(comment: str | None) -> None:
    verdict = submit(ALICE, comment=comment)
    assert not verdict.accepted
    assert "add --comment='the reason'" in " ".join(verdict.messages)


def test_other_rules_apply_to_urgent_jobs_too() -> None:
    verdict = submit(ALICE, gpus=5, comment=WHY)
    assert not verdict.accepted
    assert "rule size" in verdict.messages[0]


def test_all_conditions_of_a_group_must_match() -> None:
    assert submit(BOB, "nlp", comment=WHY).accepted
    assert not submit(BOB, "vision", comment=WHY).accepted


def test_a_group_that_ended_cannot_submit_urgent_jobs() -> None:
    past = POLICY.replace("{users: [alice]}", "{users: [alice], until: 2020-01-31}")
    assert not submit(ALICE, comment=WHY, text=past).accepted


def test_jobs_without_the_qos_get_no_site_factor() -> None:
    verdict = submit(BOB, qos="normal", comment=WHY)
    assert verdict.accepted
    assert "site_factor" not in verdict.desc


def test_a_pending_job_cannot_become_urgent_but_an_urgent_one_can_be_renamed() -> None:
    script = PolicyScript(build_bundle(compiled()))
    job = record(7, Request(uid=ALICE, account="vision"))
    nothing = dict.fromkeys(description(Request(ALICE, "vision")))
    moved = script.modify({**nothing, "qos": "urgent"}, {**job, "qos": "normal"}, PARTITIONS, ALICE)
    assert not moved.accepted
    assert "sbatch --qos=urgent" in " ".join(moved.messages)
    renamed = script.modify({**nothing, "name": "x"}, {**job, "qos": "urgent"}, PARTITIONS, ALICE)
    assert renamed.accepted


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qos": "normal"}, "The QOS of an urgent job cannot be changed"),
        ({"qos": "urgent,normal"}, "The QOS of an urgent job cannot be changed"),
        ({"account": "vision"}, "Urgent jobs (--qos=urgent) are allowed for: "),
        ({"account": "vision", "qos": "normal"}, "The QOS of an urgent job cannot be changed"),
        ({"account": "nlp", "qos": "Urgent"}, None),
    ],
)
def test_a_pending_urgent_job_cannot_move_to_another_qos_or_account(
    lua: str, changes: dict[str, str], message: str | None
) -> None:
    script = PolicyScript(build_bundle(compiled()), lua=lua)
    job = {**record(7, Request(uid=BOB, account="nlp")), "qos": "urgent"}
    nothing = dict.fromkeys(description(Request(BOB, "nlp")))
    changed = script.modify({**nothing, **changes}, job, PARTITIONS, BOB)  # type: ignore[dict-item]
    assert changed.accepted == (message is None)
    assert message is None or message in " ".join(" ".join(changed.messages).split())


@pytest.mark.parametrize("qos", ["normal,urgent", "urgent,normal", "URGENT,long"])
def test_the_urgent_qos_is_recognized_among_several(qos: str) -> None:
    assert "are allowed for: alice" in " ".join(submit(BOB, qos=qos, comment=WHY).messages)
    assert "must not name another QOS; use only --qos=urgent" in " ".join(
        submit(ALICE, qos=qos, comment=WHY).messages
    )
    assert submit(BOB, qos="urgently,normal", comment=WHY).accepted


def test_the_log_has_the_reason_of_accepted_and_refused_urgent_jobs(tmp_path: Path) -> None:
    log = tmp_path / "decisions.log"
    log.touch()
    script = PolicyScript(build_bundle({**compiled(), "decisions_log": str(log)}), writes=True)
    for uid, comment in ((ALICE, WHY), (ALICE, "ü % \n" + "x" * 400), (BOB, WHY)):
        asked = description(Request(uid=uid, account="vision"))
        script.submit({**asked, "qos": "urgent", "comment": comment}, PARTITIONS)
    first, second, third = (DecisionLine.read(line) for line in log.read_text().splitlines())
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.verdict, first.fields["urgent"]) == ("allow", WHY)
    assert second.fields["urgent"].startswith("ü % \nxxx")
    assert (third.verdict, third.fields["urgent"], third.fields["rules"]) == (
        "deny",
        WHY,
        "urgent:who:enforce",
    )


def test_the_bundle_passes_its_trial_and_names_the_urgent_qos() -> None:
    table = compiled()
    bundle = build_bundle(table)
    try_bundle(table, bundle)
    assert policy_of(bundle).urgent_qos == "urgent"
    assert compiled(has_qos=False)["urgent"] is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[leads, oncall]", "[leads, visitors]", "for: 'visitors' is not a group"),
        ("[leads, oncall]", "[everyone]", "for: group everyone matches every user"),
        ("[leads, oncall]", "leads", "for: 'leads' must be a list of names of groups, such as [grads]"),
        ("{users: [alice]}", "{qos: [long]}", "for: group leads has qos, partitions, in or not"),
        ("for: [leads, oncall], ", "", "urgent lacks for"),
        ("jobs_running: 2", "jobs_running: -1", "jobs_running: -1 must be a whole number from 0 to"),
        ("preempts: [normal]", "preempts: [URGENT]", "urgent jobs of urgent cannot preempt one another"),
        ("preempts: [normal]", "preempts: [a b]", "'a b' must be letters, digits, _ . -"),
        ("preempts: [normal]", "qos: rush", "qos: rush is not under manages: qos"),
        ("preempts: [normal]", "qos: normal", "jobs without --qos run in normal"),
        ("preempts: [normal]", "points: 3", "'points' is not a setting of urgent"),
        ("id: size", "id: urgent", "'urgent' is the id of `urgent:`"),
        (
            "  everyone: {}",
            "  everyone: {}\n  urgent: {users: [bob]}",
            "group urgent is reserved for `urgent:`",
        ),
    ],
)
def test_each_mistake_in_urgent_is_reported(old: str, new: str, message: str) -> None:
    assert old in POLICY
    found = mistakes(POLICY.replace(old, new, 1))
    assert any(message in line for line in found), found


def test_the_page_names_the_allowed_users_and_the_limit() -> None:
    page = render_text(make_page(check(POLICY)))
    message = " ".join(page.split())
    assert "alice; members of undergrad in account nlp" in message
    assert "At most 2 urgent jobs may run at once; others wait" in message
    assert "jobs in QOS normal are requeued to make room" in message
    assert json.loads(json.dumps(to_json(check(POLICY))))["urgent"]["jobs_running"] == 2


def plan(store: MemoryStore, text: str = POLICY, **conf: str) -> NativePlan:
    policy, names = load(text)
    conf = {"PriorityType": "priority/multifactor", **conf}
    today = dt.date(2026, 11, 21)
    return plan_native(policy, names, settings(**conf), store, (), lambda: (), dict, today, UIDS.get, 16)


def steps(native: NativePlan) -> list[str]:
    return [f"{step.entity}: {step.limit.show(step.new)}" for step in native.difference.steps]


def test_a_qos_with_the_limit_is_created() -> None:
    native = plan(MemoryStore(ASSOCIATIONS, [qos("normal")]))
    assert list(map(str, native.new_qos)) == ["QOS urgent: to be created (urgent jobs)"]
    found = steps(native)
    assert {
        "QOS urgent: GrpJobs=2",
        "QOS urgent: Preempt+=normal",
        "account vision: QOS+=urgent",
        "account nlp: QOS+=urgent",
    } <= set(found)
    assert native.difference.remarks == ()


def test_urgent_jobs_preempt_qos_that_the_same_apply_creates() -> None:
    owners = "owners: {nlp: {gpus: 12, lend_in: sg-loans, return_within: 10m}}"
    text = POLICY.replace("everyone: {}", f"everyone: {{}}\n  nlp: {{accounts: [nlp]}}\n{owners}")
    text = text.replace("qos: [urgent", "qos: [sg-*, urgent").replace(
        "preempts: [normal]", "preempts: [sg-nlp]"
    )
    native = plan(MemoryStore(ASSOCIATIONS, [qos("normal")]), text)
    assert {"QOS urgent: Preempt+=sg-nlp", "QOS urgent: Preempt+=sg-loans"} <= set(steps(native))
    assert not [remark for remark in native.difference.remarks if "not in slurmdbd" in remark]


def test_only_accounts_of_the_groups_get_the_qos() -> None:
    text = POLICY.replace("[leads, oncall]", "[oncall]")
    found = steps(plan(MemoryStore(ASSOCIATIONS, [qos("normal"), qos("urgent")]), text))
    assert "account nlp: QOS+=urgent" in found
    assert "account vision: QOS+=urgent" not in found


def test_missing_settings_are_reported_with_the_line_to_write() -> None:
    text = POLICY.replace("accounts: [vision, nlp]}\ngroups", "accounts: [nlp]}\ngroups")
    text = text.replace("preempts: [normal]", "preempts: [long]")
    message = "\n".join(
        plan(
            MemoryStore(ASSOCIATIONS, [qos("normal")]),
            text,
            PreemptType="preempt/none",
            PriorityType="priority/basic",
            AccountingStorageEnforce="associations,limits",
        ).difference.remarks
    )
    assert (
        "PreemptType=preempt/qos: urgent jobs cannot preempt others; set PreemptType=preempt/qos and"
        in message
    )
    assert "PriorityType=priority/multifactor in slurm.conf" in message
    assert "AccountingStorageEnforce=associations,limits,qos in slurm.conf" in message
    assert "urgent jobs cannot preempt QOS long, which is not in slurmdbd" in message
    assert "users of unmanaged account vision cannot use QOS urgent" in message


def test_without_slurmdbd_there_are_no_urgent_jobs_and_a_remark_states_it() -> None:
    native = plan(MemoryStore((), ()), AccountingStorageType="accounting_storage/none")
    assert NO_URGENT in native.difference.remarks


def test_a_policy_without_urgent_jobs_lacks_nothing() -> None:
    text = "\n".join(line for line in POLICY.splitlines() if not line.startswith("urgent:"))
    assert list(lacks(settings(PriorityType="priority/basic"), check(text))) == []
