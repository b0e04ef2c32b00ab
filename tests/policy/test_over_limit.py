"""Rules with `over_limit:`: jobs over a limit get other options instead of a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.dead_parts import idle_parts
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.tiers import written_groups
from slurm_gpu.policy.lua.script import ScriptDecision
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json

from .checking import check, mistakes
from .compile import lending
from .model import OwnerModel, PolicyModel, Request, RuleModel
from .render import PARTITIONS, changes, description, record
from .test_budgets import EIGHT_HOURS, site_of, write
from .test_snapshot import Site

LOW = {"qos": "sg-long"}
BUDGET = RuleModel("budget", "account", "fit", limits={"gpu_hours:month": 10}, hard=True, over_limit=LOW)
SHARE = RuleModel("share", "user", "fit", limits={"gpus_total": 2000}, over_limit=LOW)
ONE_GPU = Request(1001, "vision", per_job=1)


def submit(site: Site, job: Request = EIGHT_HOURS, **fields: object) -> ScriptDecision:
    return site.script.submit({**description(job), **fields}, PARTITIONS)


def qos_of(site: Site, *jobs: Request) -> list[str]:
    """Return the QOS in which each job is accepted."""
    verdicts = [submit(site, job) for job in jobs]
    assert all(verdict.accepted for verdict in verdicts)
    return [str(verdict.desc["qos"]) for verdict in verdicts]


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
def test_at_the_end_of_a_budget_jobs_run_in_another_qos(lua: str, tmp_path: Path) -> None:
    jobs = [replace(EIGHT_HOURS, uid=uid) for uid in (1001, 1002, 1003, 1001)]
    site = site_of(tmp_path, BUDGET, lua)
    assert qos_of(site, *jobs) == ["normal", "sg-long", "sg-long", "sg-long"]
    # The jobs in the other QOS do not count.
    assert qos_of(site, replace(EIGHT_HOURS, minutes=120), replace(EIGHT_HOURS, minutes=1)) == [
        "normal",
        "sg-long",
    ]


def test_the_message_names_the_change_and_the_reason(tmp_path: Path) -> None:
    site = site_of(tmp_path, BUDGET)
    write(site, used=4)
    assert submit(site).messages == (
        "Rule budget sets --qos=sg-long (was normal): Reason of budget.",
        "  GPU-hours used or committed this month: used 4, limit 10, requested 8 (limit shared",
        "    by account vision).",
    )
    assert submit(site, replace(EIGHT_HOURS, qos="sg-long")).messages == ()


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_other_modes_change_no_job(mode: str, tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(BUDGET, mode=mode))
    write(site, used=4)
    verdict = submit(site)
    assert verdict.accepted
    assert verdict.desc["qos"] == "normal"
    assert [(one.rule, one.option, one.is_made) for one in verdict.changes] == [
        ("budget", "--qos=sg-long", False)
    ]
    assert verdict.messages[:1] == (
        ("Rule budget: Reason of budget. Try: --qos=sg-long",) if mode == "advise" else ()
    )


def test_a_job_that_cannot_have_the_options_is_refused_with_a_smaller_one(tmp_path: Path) -> None:
    site = site_of(tmp_path, BUDGET)
    write(site, used=4)
    refused = submit(site, assoc_qos="normal,sg-vision")
    assert not refused.accepted
    assert refused.messages[0] == "Refused by rule budget: Reason of budget."
    assert refused.messages[3:5] == (
        "  Jobs over the limit get --qos=sg-long, but the user may not use it.",
        "  Try: sbatch --time=06:00:00 ...",
    )


def test_a_job_that_another_rule_refuses_in_the_other_qos_is_advised_to_stay_within_the_limit(
    tmp_path: Path,
) -> None:
    none = RuleModel("none", "job", qos=frozenset({"sg-long"}), limits={"gpus": 0})
    site = Site(tmp_path, rules=[BUDGET, none])
    write(site, used=4)
    refused = submit(site)
    assert refused.messages[-1] == "  Questions: gpu-help"
    assert refused.messages[-2] == "  Try: sbatch --time=06:00:00 ..."
    assert "  Before this check, rule budget set --qos=sg-long (was normal)." in refused.messages


def test_identical_jobs_change_as_soon_as_they_exceed_the_limit(tmp_path: Path) -> None:
    """The decision on the first job is cached."""
    site = Site(tmp_path, rules=[SHARE])
    site.write_snapshot()
    assert qos_of(site, *[ONE_GPU] * 4) == ["normal", "normal", "sg-long", "sg-long"]
    site.second += 5
    site.write_snapshot()
    assert qos_of(site, *[ONE_GPU] * 3) == ["normal", "normal", "sg-long"]


def test_owners_cannot_return_a_job_to_its_former_qos(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[SHARE])
    job = replace(ONE_GPU, qos="sg-long")
    site.write_snapshot(ONE_GPU, ONE_GPU, job)
    back, longer = replace(job, qos="normal"), replace(job, minutes=600)
    assert not site.script.modify(changes(job, back), record(1, job), PARTITIONS).accepted
    assert site.script.modify(changes(job, longer), record(1, job), PARTITIONS).accepted
    site.second += 1
    site.write_snapshot(ONE_GPU, job)
    assert site.script.modify(changes(job, back), record(1, job), PARTITIONS).accepted


@pytest.mark.parametrize("on_error", ["allow", "deny"])
def test_without_known_hours_on_error_decides(on_error: str, tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[BUDGET], on_error=on_error)
    site.write_snapshot()  # without hours
    verdict = submit(site)
    assert verdict.accepted == (on_error == "allow")
    assert verdict.desc["qos"] == "normal"
    # A job over the whole limit is over it in any case.
    assert qos_of(site, replace(EIGHT_HOURS, minutes=660)) == ["sg-long"]


def test_another_partition_can_take_the_jobs(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[replace(SHARE, over_limit={"partition": "long"})])
    site.write_snapshot(ONE_GPU, ONE_GPU)
    assert submit(site, replace(ONE_GPU, minutes=30)).desc["partition"] == "long"
    too_long = submit(site, replace(ONE_GPU, minutes=120))
    assert "Jobs over the limit get --partition=long, but it does not exist, is closed" in " ".join(
        too_long.messages
    )


def test_a_job_that_a_later_rule_moves_into_the_group_is_judged_at_the_end(tmp_path: Path) -> None:
    one = replace(SHARE, limits={"gpus_total": 1000})
    low = replace(one, id="low", qos=frozenset(LOW.values()), over_limit={"qos": "sg-vision"})
    site = Site(tmp_path, rules=[low, one])
    site.write_snapshot()
    verdicts = [submit(site, ONE_GPU) for _ in range(3)]
    assert [verdict.accepted for verdict in verdicts] == [True, True, False]
    assert verdicts[2].messages[0] == "Refused by rule low: Reason of low."


def test_jobs_that_move_on_along_a_chain_do_not_count(tmp_path: Path) -> None:
    text = """
version: 1
groups: {labs: {accounts: [vision]}, standby: {qos: [standby]}}
rules:
  - {id: a, for: labs, per: account, why: M., mode: fit, limits: {gpus_total: 2}, over_limit: {qos: standby}}
  - {id: b, for: standby, per: user, why: S., mode: fit, limits: {gpus_total: 1}, over_limit: {qos: last}}
"""
    policy = check(text)
    excluded = {rule.id: policy.groups[rule.group].none_of for rule in policy.rules}
    assert excluded == {"a": ("a (over limit)", "b (over limit)"), "b": ("b (over limit)",)}
    circle = text.replace("{accounts: [vision]}", "{qos: [last]}")
    assert [one.rpartition(": ")[2] for one in mistakes(circle)] == [
        "rules a, b would move jobs in a circle; give the last one different options",
        "rules b, a would move jobs in a circle; give the last one different options",
    ]


def test_a_rule_with_the_name_of_a_group_leaves_the_group_as_it_is() -> None:
    text = HEAD + RULE.replace("id: r", "id: staff")
    policy = check(text)
    assert policy.groups["staff"].accounts == ("staff",)
    assert [*written_groups(policy)] == ["all", "low", "staff"]


def test_the_qos_that_lending_assigns_counts(tmp_path: Path) -> None:
    own = replace(SHARE, qos=frozenset({"sg-vision"}), over_limit={"qos": "sg-loans"})
    site = Site(tmp_path, rules=[own])
    owners = lending(PolicyModel(owners=(OwnerModel("vision", 8000, "sg-vision"),)))
    site.load(lending=owners)
    site.write_snapshot()
    jobs = [description(ONE_GPU, terse=True) for _ in range(3)]
    given = [site.script.submit(job, PARTITIONS).desc["qos"] for job in jobs]
    assert given == ["sg-vision", "sg-vision", "sg-loans"]


def test_the_number_of_nodes_is_restricted_as_by_an_enforced_rule(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[replace(SHARE, limits={"gpus_total": 8000})])
    site.write_snapshot()
    wide = Request(1001, "vision", per_node=2, n_tasks=64)
    assert submit(site, wide).desc["max_nodes"] == 2


def test_a_partition_may_be_open_only_to_the_qos(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[replace(SHARE, over_limit={"partition": "long", "qos": "sg-long"})])
    site.write_snapshot(ONE_GPU, ONE_GPU)
    parts = [{**PARTITIONS[0], "allow_qos": "normal"}, {**PARTITIONS[1], "allow_qos": "sg-long"}]
    verdict = site.script.submit(description(replace(ONE_GPU, minutes=30)), parts)
    assert (verdict.desc["qos"], verdict.desc["partition"]) == ("sg-long", "long")


def test_options_are_set_all_or_none(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[replace(SHARE, over_limit={"partition": "long", "qos": "sg-long"})])
    site.write_snapshot(ONE_GPU, ONE_GPU)
    refused = submit(site, replace(ONE_GPU, minutes=120))
    assert refused.changes == ()
    assert not any("Before this check" in line for line in refused.messages)
    assert "Jobs over the limit get --partition=long, but it does not exist" in " ".join(refused.messages)


def test_a_refusal_names_the_command_to_try_when_other_jobs_have_ended(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[replace(SHARE, limits={"gpus_total": 4000})])
    site.write_snapshot(replace(ONE_GPU, per_job=4))
    refused = submit(site, replace(ONE_GPU, per_job=6), assoc_qos="normal")
    assert refused.messages[-2:] == (
        "  No smaller request fits now. When other jobs have ended, try: sbatch --gpus=4 ...",
        "  Questions: gpu-help",
    )


def test_a_job_over_a_known_limit_moves_although_another_one_is_unknown(tmp_path: Path) -> None:
    site = Site(
        tmp_path, rules=[replace(BUDGET, limits={"jobs_total": 0, "gpu_hours:week": 10})], on_error="deny"
    )
    site.write_snapshot()  # without hours
    assert qos_of(site, ONE_GPU) == ["sg-long"]
    unknown = submit(Site(tmp_path, rules=[BUDGET], on_error="deny"))
    assert unknown.messages[0] == "Refused: a rule of the policy could not be checked (on_error: deny)."


HEAD = "version: 1\ngroups: {all: {}, low: {qos: [low]}, staff: {accounts: [staff]}}\nrules:\n"
RULE = (
    "  - {id: r, for: all, per: user, why: So., mode: fit, limits: {gpus_total: 4}, over_limit: {qos: low}}\n"
)


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("mode: fit", "mode: enforce", "over_limit: mode: enforce refuses jobs; write mode: fit"),
        ("per: user", "per: job", "over_limit: allowed only with per: user, account or group; for one job"),
        ("gpus_total", "gpus_running", "unknown which jobs will run at the same time; write gpus_total"),
        ("gpus_total", "nodes_running", "nodes_running: at submission, it is unknown which jobs will"),
        ("limits:", "set: {qos: low}, limits:", "'set' is not allowed in a rule with per: user"),
        ("{qos: low}", "{}", "over_limit of rule r is empty; allowed: partition, qos"),
        ("{qos: low}", "{walltime: 4h}", "'walltime' is not a setting of over_limit of rule r"),
        ("limits: {gpus_total: 4}, ", "", "lacks limits"),
        ("{qos: low}", '{partition: "gpu,long"}', "partition: 'gpu,long' must be one partition"),
        ("{qos: low}", "{qos: urgent}", "qos: only users can request the QOS of urgent jobs"),
        (
            "limits: {gpus_total: 4}",
            "tiers: [{for: staff, mode: enforce, limits: {gpus_total: 8}}, {limits: {gpus_total: 4}}]",
            "mode: enforce refuses jobs; leave out either mode: or over_limit:",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(old: str, new: str, mistake: str) -> None:
    urgent = "manages: {qos: [urgent]}\nurgent: {for: [staff], jobs_running: 1, why: So.}\n"
    head = HEAD.replace("rules:", urgent + "rules:") if "urgent" in new else HEAD
    if head is not HEAD:
        assert any(mistake in one for one in mistakes(head + RULE.replace(old, new)))
        return
    assert any(mistake in one for one in mistakes(HEAD + RULE.replace(old, new)))


def test_the_default_mode_of_the_file_is_named(tmp_path: Path) -> None:
    (mistake,) = mistakes(HEAD.replace("1\n", "1\nmode: enforce\n", 1) + RULE.replace("mode: fit, ", ""))
    assert "over_limit: mode: enforce at the top of the file refuses jobs" in mistake


def test_tiers_have_one_limit_each(tmp_path: Path) -> None:
    tiers = "tiers: [{for: staff, limits: {gpus_total: 8}}, {limits: {gpus_total: 4}}]"
    policy = check(HEAD + RULE.replace("limits: {gpus_total: 4}", tiers))
    assert [(rule.id, rule.limits.gpus_total) for rule in policy.rules] != []
    for rule in policy.rules:
        assert "r (over limit)" in policy.groups[rule.group].none_of


@pytest.mark.parametrize(
    ("mode", "remark"),
    [
        (
            "fit",
            "Jobs over a limit get --qos=low instead of being refused. Jobs with these options do not count.",
        ),
        ("advise", "Advice only: jobs over a limit stay as they are, and --qos=low is suggested."),
        ("observe", "On trial: jobs over a limit stay as they are; they would get --qos=low."),
    ],
)
def test_the_page_and_json_name_the_options(mode: str, remark: str) -> None:
    policy = check(HEAD + RULE.replace("mode: fit", f"mode: {mode}"))
    assert make_page(policy).rules[0].remarks == (remark,)
    assert to_json(policy)["rules"][0]["over_limit"] == {"partition": None, "qos": "low"}


def test_a_rule_for_jobs_that_all_have_the_options_never_applies() -> None:
    policy = check_policy(parse_yaml(HEAD + RULE.replace("for: all", "for: low"), "p.yaml"))
    assert [message for _, message in idle_parts(policy)] == [
        "rule r never applies: all of its jobs are in QOS low"
    ]
