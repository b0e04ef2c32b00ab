"""Rules with `when:` or `kind:` apply only at certain hours, or only to jobs without a script."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .compile import compiled
from .findings import Known
from .fuzzing import examples, is_long, seeded
from .judgement import judge
from .model import PolicyModel, Request, RuleModel, When
from .policystrategies import ZONES, whens
from .render import PARTITIONS, description, record

ALICE = Request(uid=1001, account="vision", per_job=1)
OFFICE = RuleModel("office", "job", when=When(frozenset(range(5)), 9 * 60, 18 * 60), limits={"gpus": 0})


def at(moment: str) -> int:
    """Return a time in UTC as seconds since the epoch."""
    return int(dt.datetime.fromisoformat(f"{moment}+00:00").timestamp())


def accepted(moment: str, lua: str = "5.4", when: When | None = OFFICE.when, **more: object) -> bool:
    """Return whether a job is accepted at a time in UTC."""
    table = compiled([replace(OFFICE, when=when)], "/nonexistent/decisions.log", **more)  # type: ignore[arg-type]
    script = PolicyScript(build_bundle(table), lua=lua, now=lambda: at(moment))
    return script.submit(description(ALICE), PARTITIONS).accepted


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("moment", "free"),
    [
        ("2026-11-20 08:59:59", True),  # a Friday
        ("2026-11-20 09:00:00", False),
        ("2026-11-20 17:59:59", False),
        ("2026-11-20 18:00:00", True),
        ("2026-11-21 12:00:00", True),
        ("2026-11-23 12:00:00", False),
        ("2024-02-29 12:00:00", False),  # a Thursday
    ],
)
def test_hours_apply_to_the_time_of_submission(moment: str, free: bool, lua: str) -> None:
    assert accepted(moment, lua) is free


def test_hours_are_in_the_time_zone_of_the_site() -> None:
    """Standard time ends on 29 March 2026 at 01:00 UTC."""
    spring = at("2026-03-29 01:00:00")
    berlin = [{"from_s": 0, "offset_s": 3600}, {"from_s": spring, "offset_s": 7200}]
    assert [accepted(f"2026-03-27 0{hour}:00:00", utc_offsets=berlin) for hour in (7, 8)] == [True, False]
    assert [accepted(f"2026-03-30 0{hour}:00:00", utc_offsets=berlin) for hour in (6, 7)] == [True, False]
    seoul = [{"from_s": 0, "offset_s": 32400}]
    assert not accepted("2026-11-23 00:00:00", utc_offsets=seoul)
    assert accepted("2026-11-22 23:59:59", utc_offsets=seoul)


WEEKDAYS = frozenset(range(5))
NIGHT = When(WEEKDAYS, 22 * 60, 6 * 60)


@pytest.mark.parametrize(
    ("moment", "free"),
    [
        ("2026-11-23 21:59:59", True),  # a Monday
        ("2026-11-23 22:00:00", False),
        ("2026-11-24 00:00:00", False),
        ("2026-11-24 05:59:59", False),
        ("2026-11-24 06:00:00", True),
        ("2026-11-28 05:59:59", False),  # the night of Friday
        ("2026-11-28 22:00:00", True),
        ("2026-11-23 05:59:59", True),  # the night of Sunday
    ],
)
def test_hours_past_midnight_belong_to_the_day_on_which_they_begin(moment: str, free: bool) -> None:
    assert accepted(moment, when=NIGHT) is free


def run_of(when: When, **more: Any) -> Callable[..., bool]:
    """Return a function that returns whether a job with one GPU is accepted by a rule with `at: run`."""
    rule = RuleModel("run", "job", when=replace(when, run=True), limits={"gpus": 0})
    now_s = 0
    script = PolicyScript(
        build_bundle(compiled([rule], "/nonexistent/decisions.log", **more)), now=lambda: now_s
    )

    def accepts(moment: str, *, begin: str | None = None, minutes: int | None = None, **change: Any) -> bool:
        nonlocal now_s
        now_s = at(moment)
        request = replace(ALICE, minutes=minutes, begin_s=None if begin is None else at(begin))
        if not change:
            return script.submit(description(request), PARTITIONS).accepted
        return script.modify(change, record(1, request), PARTITIONS).accepted

    return accepts


def test_the_time_in_which_a_job_may_run_counts() -> None:
    accepts = run_of(NIGHT)
    assert accepts("2026-11-23 17:00:00", minutes=5 * 60)
    assert not accepts("2026-11-23 17:00:01", minutes=5 * 60)
    assert not accepts("2026-11-24 05:59:59", minutes=1)
    assert accepts("2026-11-24 06:00:00", minutes=16 * 60)
    # The default time limit of the partition is one hour.
    assert accepts("2026-11-23 21:00:00")
    assert not accepts("2026-11-23 21:00:01")
    # Test no time limit, and the weekend, which ends on Monday at 22:00.
    assert not accepts("2026-11-28 06:00:00", minutes=0)
    assert accepts("2026-11-28 06:00:00", minutes=64 * 60)
    assert not accepts("2026-11-28 06:00:00", minutes=64 * 60 + 1)
    assert not accepts("2026-11-28 06:00:00", minutes=3 * 7 * 1440)
    accepts = run_of(replace(NIGHT, days=frozenset({6})))
    assert not accepts("2026-11-23 05:59:59", minutes=1)  # a Monday
    assert accepts("2026-11-23 06:00:00", minutes=1440)


def test_a_run_begins_at_begin_but_not_before_now() -> None:
    accepts = run_of(When(WEEKDAYS, 8 * 60, 18 * 60))
    assert not accepts("2026-11-23 10:00:00", minutes=60)
    assert accepts("2026-11-23 10:00:00", minutes=14 * 60, begin="2026-11-23 18:00:00")
    assert not accepts("2026-11-23 10:00:00", minutes=15 * 60, begin="2026-11-23 18:00:00")
    assert not accepts("2026-11-23 07:30:00", minutes=60, begin="2026-11-23 01:00:00")


@pytest.mark.parametrize(
    ("zone", "begin", "minutes", "free"),
    [
        # Clocks in Berlin go from 02:00 to 03:00 on 29 March and from 03:00 back to 02:00 on 25 October 2026.
        ("Europe/Berlin", "2026-03-29 00:00:00", 120, True),
        ("Europe/Berlin", "2026-03-28 00:59:00", 1, True),
        ("Europe/Berlin", "2026-03-28 00:59:00", 2, False),
        ("Europe/Berlin", "2026-10-25 00:30:00", 1, False),
        ("Europe/Berlin", "2026-10-25 01:30:00", 1, False),
        ("Europe/Berlin", "2026-10-24 23:00:00", 60, True),
        ("Europe/Berlin", "2026-10-25 02:00:00", 1, True),
        # Clocks in New York go from 02:00 back to 01:00 on 1 November 2026.
        ("America/New_York", "2026-11-01 05:00:00", 120, True),
        ("America/New_York", "2026-11-01 05:00:00", 121, False),
    ],
)
def test_runs_over_a_change_of_the_clock(zone: str, begin: str, minutes: int, free: bool) -> None:
    accepts = run_of(When(frozenset(range(7)), 2 * 60, 3 * 60), zone=zone)
    assert accepts("2026-02-01 00:00:00", begin=begin, minutes=minutes) is free


# Changes of the clock in Berlin and New York.
CHANGES_S = st.sampled_from(
    [
        at("2026-10-25 01:00:00"),
        at("2026-11-01 06:00:00"),
        at("2027-03-14 07:00:00"),
        at("2027-03-28 01:00:00"),
    ]
)
MOMENTS_S = st.builds(int.__add__, CHANGES_S, st.integers(-4 * 86400, 4 * 86400))
RUNS = st.lists(
    st.tuples(MOMENTS_S, st.none() | MOMENTS_S, st.integers(0, 600) | st.integers(0, 6000)),
    min_size=10,
    max_size=10,
)


@seeded("hours")
@settings(max_examples=examples(50, one_in=20), deadline=None, derandomize=not is_long())
@given(when=whens(), zone=ZONES, runs=RUNS)
def test_the_model_applies_rules_at_the_same_times(
    when: When, zone: str, runs: list[tuple[int, int | None, int]]
) -> None:
    policy = PolicyModel((replace(OFFICE, when=when),), zone=zone)
    now_s = 0
    table = compiled(policy.rules, "/nonexistent/decisions.log", zone=zone)
    script = PolicyScript(build_bundle(table), now=lambda: now_s)
    for now_s, begin_s, minutes in runs:
        request = replace(ALICE, begin_s=begin_s, minutes=minutes)
        expected = judge(policy, request, Known((), (), now_s)).accepted
        assert script.submit(description(request), PARTITIONS).accepted is expected


def test_updates_that_move_the_run_into_the_hours_are_refused() -> None:
    accepts = run_of(When(WEEKDAYS, 8 * 60, 18 * 60))
    begin = at("2026-11-23 18:00:00")
    assert accepts("2026-11-23 07:00:00", minutes=60, time_limit=30)
    assert not accepts("2026-11-23 07:00:00", minutes=60, time_limit=61)
    assert accepts("2026-11-23 07:00:00", minutes=60, time_limit=61, begin_time=begin)
    assert not accepts("2026-11-23 07:00:00", minutes=60, time_limit=15 * 60, begin_time=begin)
    # A StartTime in the past means now.
    assert not accepts("2026-11-23 08:00:00", minutes=60, begin_time=at("2026-11-23 01:00:00"))
    # Without StartTime, the job counts as one that may start now, so the rule applied to it before.
    assert accepts("2026-11-23 08:00:00", minutes=60, time_limit=120)
    assert not accepts("2026-11-23 08:00:00", minutes=60, tres_per_job="gres:gpu:2")


def test_sums_do_not_count_an_updated_job_twice() -> None:
    """The job already counts in the rule's group before the rule applies to it."""
    rule = RuleModel(
        "sum", "user", when=When(WEEKDAYS, 8 * 60, 18 * 60, run=True), limits={"gpus_total": 2000}
    )
    table = compiled([rule], "/nonexistent/decisions.log")
    script = PolicyScript(build_bundle(table), now=lambda: at("2026-11-23 07:00:00"))
    two = record(1, replace(ALICE, per_job=2, minutes=60))
    longer = {"time_limit": 120}
    script.set_jobs([two])
    assert script.modify(longer, two, PARTITIONS).accepted
    script.set_jobs([two, record(2, ALICE)])
    assert not script.modify(longer, two, PARTITIONS).accepted


def messages(rules: list[RuleModel], moment: str, request: Request) -> list[str]:
    """Return the lines of a refusal that name neither a rule's reason nor the contact."""
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")), now=lambda: at(moment))
    decision = script.submit(description(request), PARTITIONS)
    assert not decision.accepted
    return [line for line in decision.messages if "Questions" not in line and "Reason" not in line]


def test_a_refusal_names_the_hours_and_others_at_which_the_job_would_be_accepted() -> None:
    day = RuleModel("day", "job", when=When(WEEKDAYS, 8 * 60, 18 * 60, run=True), limits={"gpus": 1000})
    applies = "  The rule applies to jobs that may run on Monday to Friday from 08:00 to 18:00."
    numbers = "  GPUs in one job: limit 1, requested 4."
    job = replace(ALICE, per_job=4, minutes=180)
    smaller = "  Try: sbatch --gpus=1 ..."
    assert messages([day], "2026-11-23 06:00:30", job) == [
        applies,
        numbers,
        smaller,
        "  To run at other hours: --begin=2026-11-23T18:00",
        "  To end before these hours: --time=01:58:00",
    ]
    friday = "2026-11-27 17:59:30"
    assert messages([day], friday, job)[3:] == ["  To run at other hours: --begin=2026-11-27T18:00"]
    assert messages([day], friday, replace(job, minutes=0))[2:] == [smaller]
    begin_s = at("2026-11-27 05:00:00")
    assert messages([day], "2026-11-26 09:00:00", replace(job, minutes=240, begin_s=begin_s))[3:] == [
        "  To run at other hours: --begin=2026-11-27T18:00",
        "  To end before these hours: --time=03:00:00",
    ]
    # Another rule would refuse the job at any time.
    always = RuleModel("always", "job", limits={"gpus": 2000})
    assert messages([day, always], "2026-11-23 06:00:30", job)[3:] == [smaller]
    night = RuleModel("night", "job", when=NIGHT, limits={"gpus": 0})
    assert messages([night], "2026-11-23 23:00:00", ALICE)[0] == (
        "  The rule applies to jobs submitted on Monday to Friday from 22:00 to 06:00 the next"
    )


def test_a_job_without_a_script_is_interactive() -> None:
    rules = [
        RuleModel("shell", "job", kind="interactive", limits={"walltime": 3600, "gpus": 1000}),
        RuleModel("batch", "job", kind="batch", limits={"gpus": 4000}),
    ]
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")))

    def ask(gpus: int, interactive: bool, **fields: int) -> bool:
        request = Request(uid=1001, account="vision", per_job=gpus, interactive=interactive)
        return script.submit(description(request) | fields, PARTITIONS).accepted

    assert ask(4, interactive=False)
    assert not ask(5, interactive=False)
    assert ask(1, interactive=True)
    assert not ask(2, interactive=True)
    # Only the first component of a het job has a script.
    assert ask(2, interactive=False, het_job_offset=0)
    assert ask(2, interactive=True, het_job_offset=1)
    assert not ask(2, interactive=True)
    row = record(1, Request(uid=1001, account="vision", per_job=1, interactive=True))
    assert not script.modify({"tres_per_job": "gres:gpu:2"}, row, PARTITIONS).accepted
