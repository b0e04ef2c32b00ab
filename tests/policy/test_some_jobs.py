"""Sums over only some jobs of a group (`jobs:` in rules with `per: user`, `account` or `group`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.controller.queue.selection import selects
from slurm_gpu.policy.lua.installed import GroupInForce, RuleInForce
from slurm_gpu.policy.lua.script import LUA_VERSIONS
from slurm_gpu.slurm.queue import JobPhase
from tests.controller.fakes import make_job

from .model import JobsModel, Request, RuleModel
from .render import PARTITIONS, changes, description, record
from .test_snapshot import UNREADABLE, Site

SESSION = RuleModel("one", "user", jobs=JobsModel(names=frozenset({"jupyter*"})), limits={"jobs_total": 1})
LONG = RuleModel("long", "user", jobs=JobsModel(at_least={"walltime": 7200}), limits={"jobs_total": 2})
JUPYTER = Request(1001, "vision", per_job=1, name="jupyter-lab")
TRAIN = Request(1001, "vision", per_job=1)
TWO_HOURS = replace(TRAIN, minutes=120)


def accepted(site: Site, *jobs: Request) -> list[bool]:
    return [site.script.submit(description(job), PARTITIONS).accepted for job in jobs]


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_only_the_selected_jobs_count(lua: str, tmp_path: Path) -> None:
    site = Site(tmp_path, lua, [SESSION])
    other = replace(JUPYTER, uid=1002)
    assert accepted(site, TRAIN, TRAIN, JUPYTER, JUPYTER, TRAIN, other) == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    site.second += 60
    site.script.set_jobs([record(1, JUPYTER, running=True), record(2, TRAIN)])
    assert accepted(site, JUPYTER, TRAIN) == [False, True]
    site.second += 60
    site.script.set_jobs([record(2, TRAIN)])
    assert accepted(site, JUPYTER) == [True]


def test_snapshots_are_not_used_since_they_have_sums_over_whole_groups(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[SESSION])
    site.write_snapshot(JUPYTER)
    assert accepted(site, JUPYTER) == [True]
    site.second += 5
    site.write_snapshot()
    site.script.set_jobs(UNREADABLE)
    verdict = site.script.submit(description(JUPYTER), PARTITIONS)
    assert "the decision failed" in "".join(line for level, line in verdict.log if level == "error")


def test_a_reload_preserves_which_admissions_were_selected(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[SESSION])
    assert accepted(site, TRAIN) == [True]
    site.load()
    assert accepted(site, JUPYTER) == [True]
    site.load()
    assert accepted(site, JUPYTER, TRAIN) == [False, True]


def test_lines_of_an_earlier_script_count_as_selected(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[SESSION])
    assert accepted(site, TRAIN) == [True]
    log = tmp_path / "decisions.log"
    log.write_text(log.read_text().replace(" selected=", " removed="))
    site.load()
    assert accepted(site, JUPYTER) == [False]


def test_an_update_into_the_conditions_counts(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[LONG])
    queue = [record(1, TWO_HOURS, running=True), record(2, TWO_HOURS), record(3, TRAIN)]
    site.script.set_jobs(queue)
    assert not site.script.modify(changes(TRAIN, TWO_HOURS), queue[2], PARTITIONS).accepted
    assert site.script.modify(changes(TRAIN, replace(TRAIN, minutes=119)), queue[2], PARTITIONS).accepted
    assert site.script.modify(
        changes(TWO_HOURS, replace(TWO_HOURS, minutes=180)), queue[1], PARTITIONS
    ).accepted
    site.second += 60
    site.script.set_jobs(queue[1:])
    assert site.script.modify(changes(TRAIN, TWO_HOURS), queue[2], PARTITIONS).accepted
    assert accepted(site, TWO_HOURS) == [False]  # the updated job counts before the table shows the update


def test_a_pending_job_without_a_time_limit_has_that_of_its_partition(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[LONG])
    site.script.set_jobs([record(n, TRAIN, time_limit=None) for n in range(3)])
    assert accepted(site, TWO_HOURS) == [True]


def test_a_running_job_has_only_the_types_of_its_gpus(tmp_path: Path) -> None:
    v100 = RuleModel("v100", "user", jobs=JobsModel(gpu_types=frozenset({"v100"})), limits={"jobs_total": 2})
    site, job = Site(tmp_path, rules=[v100]), replace(TRAIN, partition="gpu,long")
    on_a100 = replace(job, given_type="a100")
    site.script.set_jobs([record(n, on_a100, running=True) for n in range(3)])
    assert accepted(site, job) == [True]
    site.second += 60
    site.script.set_jobs([record(10 + n, replace(job, given_type="v100"), running=True) for n in range(3)])
    assert accepted(site, job) == [False]


def test_long_names_are_compared_by_their_first_characters(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[SESSION])
    assert accepted(site, replace(JUPYTER, name="jupyter" + "x" * 300), JUPYTER) == [True, False]


def test_running_tasks_of_arrays_are_arrays(tmp_path: Path) -> None:
    arrays = RuleModel("arrays", "user", jobs=JobsModel(array=True), limits={"jobs_total": 3})
    site = Site(tmp_path, rules=[arrays])
    site.script.set_jobs([record(1, TRAIN, running=True, array_job_id=9), record(2, TRAIN)])
    sweep = replace(TRAIN, array_tasks=3)
    assert accepted(site, sweep, replace(sweep, array_tasks=2)) == [False, True]


def test_the_refusal_does_not_claim_that_no_smaller_job_fits(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[LONG])
    site.script.set_jobs([record(7, TWO_HOURS, running=True), record(8, TWO_HOURS)])
    assert site.script.submit(description(TWO_HOURS), PARTITIONS).messages == (
        "Refused by rule long: Reason of long.",
        "  The rule applies to jobs with a time limit of at least 2h.",
        "  jobs running + pending: used 2, limit 2, requested 1.",
        "  Wait for a job to end, or cancel one:",
        "    scancel 8",
        "  Questions: gpu-help",
    )


def test_a_job_that_was_just_updated_can_still_be_named_in_a_refusal(tmp_path: Path) -> None:
    """Slurm may show an update to the script only after another job has changed."""
    site = Site(tmp_path, rules=[LONG])
    rows = [record(7, TWO_HOURS), record(8, TWO_HOURS)]
    site.script.set_jobs(rows)
    site.script.submit(description(JUPYTER), PARTITIONS)
    assert site.script.modify({"comment": "seen"}, rows[1], PARTITIONS, 0).accepted
    assert "    scancel 8" in site.script.submit(description(TWO_HOURS), PARTITIONS).messages
    site.script.set_jobs([rows[0], record(8, replace(TWO_HOURS, minutes=60))])
    assert site.script.submit(description(TWO_HOURS), PARTITIONS).accepted


@pytest.mark.parametrize(
    ("conditions", "job", "expected"),
    [
        ({"names": {"jupyter*": True}}, {"name": "jupyter-lab"}, True),
        ({"names": {"jupyter*": True}}, {"name": "train"}, False),
        ({"array": True}, {"is_array": True}, True),
        ({"array": False}, {"is_array": True}, False),
        ({"gpu_types": {"a100": True}}, {"per_job": "gres:gpu:a100:1"}, True),
        ({"gpu_types": {"h100": True}}, {"per_job": "gres:gpu:a100:1"}, False),
        ({"gpu_types": {"h100": True}}, {"per_job": "gres:gpu:1"}, True),
        ({"gpu_types": {"v100": True}}, {"per_job": "gres:gpu:1"}, False),
        ({"gpu_types": {"h100": True}}, {}, False),
        ({"at_least": {"walltime_s": 7200}}, {"limit_s": 7200}, True),
        ({"at_least": {"walltime_s": 7200}}, {"limit_s": 7199}, False),
        # Without --time, jobs get the default time limit of their partition.
        ({"at_least": {"walltime_s": 7200}}, {}, False),
        ({"at_least": {"walltime_s": 7200}}, {"partition": "gpu,endless"}, True),
        ({"at_most": {"walltime_s": 3600}}, {}, True),
        ({"at_most": {"walltime_s": 3600}}, {"partition": "endless"}, False),
        ({"at_least": {"mgpu": 2000}}, {"per_job": "gres:gpu:2"}, True),
        ({"at_most": {"mgpu": 1000}}, {"per_job": "gres:gpu:2"}, False),
        ({"at_least": {"nodes": 2}}, {"n_nodes": 3}, True),
        ({"at_most": {"nodes": 2}}, {"n_nodes": 3}, True),  # a range from 1 to 3 nodes
    ],
)
def test_the_limits_of_a_user_count_the_same_jobs(
    conditions: dict[str, object], job: dict[str, object], expected: bool
) -> None:
    facts = CountingFacts(
        partition_types={"gpu": frozenset({"a100", "h100"})},
        partition_limits_s={"gpu": 3600, "endless": None},
    )
    jobs = {"at_least": {}, "at_most": {}, **conditions}
    rule = RuleInForce("r", GroupInForce("g"), "user", "So.", "enforce", {"jobs_total": 1}, jobs=jobs)
    request = {"per_job": "", "per_node": "", "tres": "cpu=1,node=1", **job}
    assert selects(rule, make_job(1, JobPhase.PENDING, **request), facts) is expected
