"""Rules that apply only at certain hours, or only to jobs without a script."""

from __future__ import annotations

import datetime as dt

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .compile import compiled
from .model import Request, RuleModel, When
from .render import PARTITIONS, description, record

ALICE = Request(uid=1001, account="vision", per_job=1)
OFFICE = RuleModel("office", "job", when=When(frozenset(range(5)), 9 * 60, 18 * 60), limits={"gpus": 0})


def accepted(moment: str, lua: str = "5.4", **more: object) -> bool:
    """Return whether a job is accepted at a time in UTC."""
    second = int(dt.datetime.fromisoformat(moment).replace(tzinfo=dt.UTC).timestamp())
    table = compiled([OFFICE], "/nonexistent/decisions.log", **more)  # type: ignore[arg-type]
    script = PolicyScript(build_bundle(table), lua=lua, now=lambda: second)
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
    spring = int(dt.datetime(2026, 3, 29, 1, tzinfo=dt.UTC).timestamp())
    berlin = [{"from_s": 0, "offset_s": 3600}, {"from_s": spring, "offset_s": 7200}]
    assert [accepted(f"2026-03-27 0{hour}:00:00", utc_offsets=berlin) for hour in (7, 8)] == [True, False]
    assert [accepted(f"2026-03-30 0{hour}:00:00", utc_offsets=berlin) for hour in (6, 7)] == [True, False]
    seoul = [{"from_s": 0, "offset_s": 32400}]
    assert not accepted("2026-11-23 00:00:00", utc_offsets=seoul)
    assert accepted("2026-11-22 23:59:59", utc_offsets=seoul)


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
