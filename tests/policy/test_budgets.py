"""Hard limits on GPU-hours count what pending and running jobs may still use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.pages.page import make_page

from .checking import mistakes
from .model import Request, RuleModel
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
    hours = {(rule.id, owner, "month"): used for rule in rules for owner in (None, 1001, 1002, "vision")}
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


TEXT = """\
version: 1
mode: enforce
groups: {all: {}}
rules: [{id: budget, for: all, per: account, why: w, hard: true, limits: {%s}}]
"""


def test_only_limits_on_the_gpu_hours_of_a_period_can_be_hard() -> None:
    (mistake,) = mistakes(TEXT % "gpus_total: 4")
    assert mistake.endswith(
        "hard: only limits on GPU-hours by period can be hard, such as gpu_hours: {month: 500}"
    )
    (mistake,) = mistakes((TEXT % "gpu_hours: 4").replace("per: account", "per: job"))
    assert "hard: only limits" in mistake


def test_the_page_states_that_a_limit_is_hard() -> None:
    (rule, _) = make_page(check_policy(parse_yaml(TEXT % "gpu_hours: {quarter: 9, 30d: 4}", "p.yaml"))).rules
    assert rule.limits == (
        "at most 9 GPU-hours a quarter per account",
        "at most 4 GPU-hours in 30 days per account",
    )
    assert "GPU-hours that pending and running jobs may still use count, too." in rule.remarks
