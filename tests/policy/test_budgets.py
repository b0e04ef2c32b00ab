"""Budgets of GPU-hours and CPU-hours; hard ones count what pending and running jobs may still use."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.coverage import covered_limits
from slurm_gpu.policy.pages.page import make_page

from .checking import mistakes
from .model import ExceptionModel, Request, RuleModel
from .render import PARTITIONS, description, record, snapshot
from .test_snapshot import Site

BUDGET = RuleModel("budget", "group", limits={"gpu_hours:month": 10}, hard=True)
EIGHT_HOURS = Request(1001, "vision", per_job=1, minutes=480)


def site_of(directory: Path, rule: RuleModel, lua: str = "5.4") -> Site:
    site = Site(directory, lua, [rule], on_error="deny")
    write(site)
    return site


def write(site: Site, *jobs: Request, used: float = 0, tokens: tuple[str, ...] = ()) -> None:
    rules = site.rules
    hours = {
        (rule.id, owner, limit): used
        for rule in rules
        for owner in (None, 1001, 1002, "vision")
        for limit in rule.limits
    }
    pending = [(job, False) for job in jobs]
    site.file.write_text(snapshot(site.second, site.second, rules, pending, tokens, hours))


def submit(site: Site, *jobs: Request) -> list[bool]:
    return [site.script.submit(description(job), PARTITIONS).accepted for job in jobs]


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
@pytest.mark.parametrize("per", ["group", "account"])
def test_of_four_submitters_of_eight_hour_jobs_one_gets_a_budget_of_ten_hours(
    lua: str, per: str, tmp_path: Path
) -> None:
    jobs = [replace(EIGHT_HOURS, uid=uid) for uid in (1001, 1002, 1003, 1001)]
    assert submit(site_of(tmp_path, replace(BUDGET, per=per), lua), *jobs) == [True, False, False, False]
    soft = replace(BUDGET, per=per, hard=False)
    assert submit(site_of(tmp_path, soft, lua), *jobs) == [True, True, True, True]


def test_the_refusal_names_both_parts_of_the_sum(tmp_path: Path) -> None:
    site = site_of(tmp_path, BUDGET)
    write(site, EIGHT_HOURS, used=1.5)
    refused = site.script.submit(description(EIGHT_HOURS), PARTITIONS)
    assert refused.messages[1:3] == (
        "  GPU-hours used or committed this month: used 9.5, limit 10, requested 8 (limit",
        "    shared by group group-budget).",
    )
    assert refused.messages[3] == "  Try: sbatch --time=00:30:00 ..."
    site.second += 1
    write(site, EIGHT_HOURS, used=2)
    full = site.script.submit(description(EIGHT_HOURS), PARTITIONS)
    assert full.messages[3:5] == (
        "  No smaller request fits the limits now. Wait until jobs end before their time",
        "    limit, or until the next month begins.",
    )


def test_an_admission_counts_until_a_snapshot_contains_it_also_after_a_reload(tmp_path: Path) -> None:
    site = site_of(tmp_path, BUDGET)
    verdict = site.script.submit(description(EIGHT_HOURS), PARTITIONS)
    site.load()
    assert submit(site, EIGHT_HOURS) == [False]
    site.second += 1
    write(site, EIGHT_HOURS, tokens=(f"{site.token(verdict)} {site.second}",))
    assert submit(site, EIGHT_HOURS, replace(EIGHT_HOURS, minutes=120)) == [False, True]


def test_rules_for_one_kind_of_job_count_admissions_that_no_snapshot_contains(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(BUDGET, kind="batch"))
    verdict = site.script.submit(description(EIGHT_HOURS), PARTITIONS)
    comment = str(verdict.desc["admin_comment"])
    site.script.set_jobs([record(1, EIGHT_HOURS, admin_comment=comment)])
    assert submit(site, EIGHT_HOURS) == [False]


def test_a_job_whose_number_of_nodes_the_script_sets_counts(tmp_path: Path) -> None:
    jobs = [Request(1001, "vision", per_job=4, n_tasks=33, minutes=60)] * 4
    assert submit(site_of(tmp_path, BUDGET), *jobs) == [True, True, False, False]


def test_a_saved_job_that_a_snapshot_contains_counts_once(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(BUDGET, kind="batch"))
    five_hours = replace(EIGHT_HOURS, minutes=300)
    verdict = site.script.submit(description(five_hours), PARTITIONS)
    (tmp_path / "job_state").write_text(f"x t={site.token(verdict)} y")
    site.second += 200
    write(site, five_hours)  # the job has no token: snapshots list tokens for two minutes
    assert submit(site, replace(EIGHT_HOURS, minutes=301), five_hours) == [False, True]


def test_an_update_counts_by_the_time_that_it_adds(tmp_path: Path) -> None:
    site = site_of(tmp_path, BUDGET)
    job = replace(EIGHT_HOURS, minutes=240)
    write(site, job, job)
    row = record(1, job)
    assert not site.script.modify({"time_limit": 361}, row, PARTITIONS).accepted
    assert site.script.modify({"time_limit": 360}, row, PARTITIONS).accepted
    # Until the next snapshot, the two hours that were added count for another update.
    assert not site.script.modify({"time_limit": 241}, record(2, job), PARTITIONS).accepted
    assert site.script.modify({"time_limit": 60}, record(2, job), PARTITIONS).accepted


def test_a_job_without_a_time_limit_fits_no_budget(tmp_path: Path) -> None:
    assert submit(site_of(tmp_path, BUDGET), replace(EIGHT_HOURS, minutes=0)) == [False]
    observed = site_of(tmp_path, replace(BUDGET, mode="observe"))
    assert submit(observed, replace(EIGHT_HOURS, minutes=0), EIGHT_HOURS) == [True, True]


def test_a_budget_of_one_gpu_type_counts_only_jobs_that_may_use_it(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(BUDGET, limits={"gpu_hours:week:a100": 10}))
    v100 = replace(EIGHT_HOURS, gpu_type="v100")
    write(site, v100, v100, used=1)
    assert submit(site, replace(EIGHT_HOURS, gpu_type="a100"), v100) == [True, True]
    site.load()  # the line in decisions.log has the type
    refused = site.script.submit(description(replace(EIGHT_HOURS, gpu_type="a100")), PARTITIONS)
    assert refused.messages[1:4] == (
        "  GPU-hours on a100 GPUs used or committed this week: used 9, limit 10, requested 8",
        "    (limit shared by group group-budget).",
        "  Try: sbatch --time=01:00:00 ...",
    )


def test_a_job_without_gpus_counts_for_cpu_hours_only(tmp_path: Path) -> None:
    rule = replace(BUDGET, limits={"gpu_hours:day": 10, "cpu_hours:day": 40})
    job = Request(1001, "vision", n_tasks=4, minutes=480)
    site = site_of(tmp_path, rule)
    assert submit(site, job, job) == [True, False]
    site.load()  # the line in decisions.log has both units
    refused = site.script.submit(description(replace(job, n_tasks=3)), PARTITIONS)
    assert refused.messages[1:4] == (
        "  CPU-hours used or committed today: used 32, limit 40, requested 24 (limit shared by",
        "    group group-budget).",
        "  Try: sbatch --time=02:40:00 ...",
    )
    assert submit(site, EIGHT_HOURS) == [True]
    site.second += 1
    write(site, used=40)
    full = site.script.submit(description(job), PARTITIONS)
    assert full.messages[3].startswith("  No smaller request fits the limits now. Wait until jobs end before")


def test_billing_hours_count_the_units_of_the_partition(tmp_path: Path) -> None:
    rule = replace(BUDGET, limits={"billing_hours:week": 60})
    site, job = site_of(tmp_path, rule), Request(1001, "vision", per_job=1, mib_per_node=2048, minutes=480)
    assert submit(site, replace(job, partition="long"), job) == [True, True]  # 8 × 1 CPU, 8 × 5 units
    refused = site.script.submit(description(replace(job, minutes=180)), PARTITIONS)
    assert refused.messages[1:4] == (
        "  billing-hours used or committed this week: used 48, limit 60, requested 15 (limit",
        "    shared by group group-budget).",
        "  Try: sbatch --time=02:24:00 ...",
    )
    site.second += 3
    write(site, job, used=5)
    refused = site.script.modify({"time_limit": 700}, record(1, job), PARTITIONS)
    assert refused.messages[1].startswith("  billing-hours used or committed this week: used 5, limit 60")
    assert site.script.modify({"time_limit": 660, "partition": "gpu"}, record(1, job), PARTITIONS).accepted


def test_cpu_hours_that_an_older_slurm_gpuctld_does_not_count_are_unknown(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(BUDGET, limits={"gpu_hours:day": 90, "cpu_hours:day": 90}))
    site.file.write_text(site.file.read_text().replace(" cpu_h_day=1", ""))
    verdict = site.script.submit(description(EIGHT_HOURS), PARTITIONS)
    assert [text for level, text in verdict.log if level == "error"] == [
        "slurm-gpu: rule budget failed: CPU-hours are unknown: they require a snapshot from slurm-gpuctld"
    ]


def test_what_was_left_of_the_previous_period_is_added_once(tmp_path: Path) -> None:
    rule = replace(BUDGET, limits={"cpu_hours:day": 10, "gpu_hours:30d": 99}, hard=False, carry_over=True)
    site, job = site_of(tmp_path, rule), Request(1001, "vision", n_tasks=4, minutes=240)

    def messages(used: float | None, before: float) -> list[str]:
        site.second += 1
        hours = None if used is None else {("budget", None, "cpu_hours:day"): used}
        if hours is not None:
            hours["budget", None, "cpu_hours:day_before"] = before
        site.file.write_text(snapshot(site.second, site.second, [rule], [], hours=hours))
        return list(site.script.submit(description(job), PARTITIONS).messages[1:2])

    assert messages(0, 4) == messages(0, 0) == []
    limit, asked = "  CPU-hours today: used", "requested 16 (limit shared by"
    assert messages(0, 6) == [f"{limit} 0, limit 14 (4 carried over), {asked}"]
    assert messages(1, 10) == messages(1, 25) == [f"{limit} 1, limit 10, {asked} group"]
    assert messages(4.5, 0) == [f"{limit} 4.5, limit 20 (10 carried over), {asked.removesuffix(' by')}"]
    job = replace(job, minutes=360)
    asked = "  CPU-hours today: limit 10 (up to 10 more may be carried over), requested 24 (limit"
    assert messages(None, 0) == [asked]


def test_the_limit_of_an_exception_counts_for_the_previous_period_too(tmp_path: Path) -> None:
    exception = ExceptionModel({"cpu_hours:day": 20}, from_day=dt.date(1970, 1, 12))
    rule = RuleModel(
        "own", "user", limits={"cpu_hours:day": 10}, carry_over=True, exceptions={1001: exception}
    )
    site = site_of(tmp_path, rule)
    hours = {("own", uid, f"cpu_hours:day{when}"): 9.0 for uid in (1001, 1002) for when in ("", "_before")}
    site.file.write_text(snapshot(site.second, site.second, [rule], [], hours=hours))

    def is_accepted(uid: int, n_hours: int) -> bool:
        job = Request(uid, "vision", n_tasks=1, minutes=60 * n_hours)
        return site.script.submit(description(job), PARTITIONS).accepted

    assert [is_accepted(1001, n_hours) for n_hours in (22, 23)] == [True, False]  # 20 + 11 − 9
    assert [is_accepted(1002, n_hours) for n_hours in (2, 3)] == [True, False]  # 10 + 1 − 9


def test_known_use_counts_while_the_previous_period_is_unknown(tmp_path: Path) -> None:
    rule = replace(BUDGET, limits={"cpu_hours:day": 10}, hard=False, carry_over=True)
    site, job = site_of(tmp_path, rule), description(Request(1001, "vision", n_tasks=1, minutes=60))

    def messages(used: float) -> str:
        site.second += 1
        hours = {("budget", None, "cpu_hours:day"): used, ("budget", None, "cpu_hours:day_before"): 1.0}
        text = snapshot(site.second, site.second, [rule], [], hours=hours)
        assert " cpu_h_day_before=1" in text
        site.file.write_text(text.replace(" cpu_h_day_before=1", ""))
        return " ".join(" ".join(site.script.submit(job, PARTITIONS).messages).split())

    assert "CPU-hours today:" not in messages(3)
    limit = "limit 10 (up to 10 more may be carried over), requested 1 (limit shared by group"
    assert f"CPU-hours today: used 30, {limit}" in messages(30)


def test_an_accepted_job_is_compared_again_with_what_was_carried_over(tmp_path: Path) -> None:
    rule = replace(BUDGET, limits={"gpu_hours:month": 8}, carry_over=True)
    site = site_of(tmp_path, rule)
    assert submit(site, *[EIGHT_HOURS] * 4) == [True, True, False, False]


TEXT = """\
version: 1
mode: enforce
groups: {all: {}}
rules: [{id: budget, for: all, per: account, why: w, hard: true, limits: {%s}}]
"""


def test_only_limits_on_the_gpu_hours_of_a_period_can_be_hard() -> None:
    (mistake,) = mistakes(TEXT % "gpus_total: 4")
    assert mistake.endswith(
        "hard: only limits on hours by period can be hard, such as gpu_hours: {month: 500}"
    )
    (mistake,) = mistakes((TEXT % "gpu_hours: 4").replace("per: account", "per: job"))
    assert "hard: only limits" in mistake
    (mistake,) = mistakes(TEXT % "gpu_hours: {month: 1}, billing_hours: {month: 500}")
    assert "billing_hours cannot be hard" in mistake


def test_only_calendar_periods_carry_over() -> None:
    text = TEXT.replace("hard:", "carry_over:")
    assert check_policy(parse_yaml(text % "gpu_hours: {month: 4}, cpu_hours: {year: 5}", "p.yaml"))
    (mistake,) = mistakes(text % "gpus_total: 4")
    assert mistake == (
        "p.yaml:4:54: carry_over: only limits on hours by period can carry over, such as "
        "gpu_hours: {month: 500}"
    )
    (mistake,) = mistakes(text % "gpu_hours: {month: 4, 30d: 5}")
    assert mistake == (
        "p.yaml:4:103: 30d: a rolling window has no previous period from which hours carry over; write "
        "day, week, month, quarter or year, or leave carry_over out"
    )


def test_a_limit_that_carries_over_covers_no_other() -> None:
    text = TEXT.replace("limits: {%s}}]", "limits: {gpu_hours: {month: 4}}},\n  {%s}]").replace(
        "hard", "carry_over"
    )
    second = "id: second, for: all, per: account, why: w, limits: {gpu_hours: {month: 5}}"
    assert not list(covered_limits(check_policy(parse_yaml(text % second, "p.yaml"))))
    second = second.replace("5", "4")
    (found,) = covered_limits(check_policy(parse_yaml(text % second, "p.yaml")))
    assert (found.rule.id, found.by.id) == ("budget", "second")


def test_the_page_states_that_a_limit_is_hard() -> None:
    (rule, _) = make_page(check_policy(parse_yaml(TEXT % "gpu_hours: {quarter: 9, 30d: 4}", "p.yaml"))).rules
    assert rule.limits == (
        "at most 9 GPU-hours a quarter per account",
        "at most 4 GPU-hours in 30 days per account",
    )
    assert "GPU-hours that pending and running jobs may still use also count." in rule.remarks
    both = TEXT % "gpu_hours: {quarter: 9}, cpu_hours: {quarter: 1}"
    (rule, _) = make_page(check_policy(parse_yaml(both, "p.yaml"))).rules
    assert rule.limits[1] == "at most 1 CPU-hour a quarter per account"
    carrying = (TEXT % "gpu_hours: {quarter: 9}").replace("hard", "carry_over")
    (budget, _) = make_page(check_policy(parse_yaml(carrying, "p.yaml"))).rules
    assert "Unused hours of the previous period's limit are added." in budget.remarks
    assert "GPU-hours and CPU-hours that pending and running jobs may still use also count." in rule.remarks
