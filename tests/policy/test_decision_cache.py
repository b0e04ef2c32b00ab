"""A cached acceptance equals a new judgement in verdict, messages, log and job_desc.

A script with `considers` judges each job in full, because explain considers every limit of a job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScalarFields, ScriptDecision

from .compile import compiled
from .fuzzing import examples
from .model import BundleModel, Request, RuleModel
from .policystrategies import BUNDLES, rule_lists
from .render import PARTITIONS, description, record, snapshot
from .strategies import full_requests, queued
from .zonecluster import with_zones

START = 1_000_000
TOKEN = re.compile(r"(?<=t=)\w+|(?<=allow )\w+")


@dataclass
class Site:
    """A script, its files, and a clock."""

    directory: Path
    rules: list[RuleModel]
    bundles: list[BundleModel] = field(default_factory=list)
    considers: bool = False
    lua: str = "5.4"
    second: int = START

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        for name in ("decisions.log", "snapshot.txt"):
            (self.directory / name).unlink(missing_ok=True)
        table = compiled(self.rules, str(self.log), bundles=self.bundles, snapshot=str(self.snapshot))
        self.script = PolicyScript(
            build_bundle(table), lua=self.lua, writes=True, now=lambda: self.second, considers=self.considers
        )

    @property
    def log(self) -> Path:
        return self.directory / "decisions.log"

    @property
    def snapshot(self) -> Path:
        return self.directory / "snapshot.txt"

    def submit(self, desc: ScalarFields, partitions: Sequence[ScalarFields] = PARTITIONS) -> ScriptDecision:
        return self.script.submit(desc, partitions)

    def logged(self) -> list[str]:
        """Return decisions.log without its random tokens."""
        return [TOKEN.sub("TOKEN", line) for line in self.log.read_text().splitlines()]


def visible(site: Site, verdict: ScriptDecision) -> tuple[Any, ...]:
    """Return the parts of a verdict that slurmctld receives, without the random token."""
    desc = {
        name: TOKEN.sub("TOKEN", value) if isinstance(value, str) else value
        for name, value in verdict.desc.items()
    }
    log = [(level, text.replace(str(site.directory), "")) for level, text in verdict.log]
    return verdict.code, verdict.messages, log, desc


# The mode of zones in a snapshot follows from its number of jobs.
MODES = ("enforce", "observe", None, "advise")
# An event between submissions: none, elapsed seconds, a new job table or a new snapshot.
events = st.one_of(
    st.none(),
    st.integers(1, 3),
    st.lists(queued(), max_size=4),
    st.lists(queued(), max_size=4).map(tuple),
)


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
@settings(
    max_examples=examples(16, one_in=10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rules=rule_lists(hours=False),
    bundles=BUNDLES,
    asked=st.lists(full_requests(), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), events), min_size=4, max_size=16),
    foreign=st.sampled_from([None, "by hand"]),
)
def test_cached_and_full_judgements_are_equal(
    tmp_path: Path,
    lua: str,
    rules: list[RuleModel],
    bundles: list[BundleModel],
    asked: list[Request],
    steps: list[tuple[int, int | list[tuple[Request, bool]] | tuple[tuple[Request, bool], ...] | None]],
    foreign: str | None,
) -> None:
    cached = Site(tmp_path / "quick", rules, bundles, lua=lua)
    uncached = Site(tmp_path / "thorough", rules, bundles, considers=True, lua=lua)
    for which, event in steps:
        for site in (cached, uncached):
            if isinstance(event, int):
                site.second += event
            elif isinstance(event, list):
                site.script.set_jobs(
                    record(number, job, running=running) for number, (job, running) in enumerate(event, 1)
                )
            elif event is not None:
                text = snapshot(site.second, site.second, rules, list(event))
                mode = MODES[len(event) % len(MODES)]
                site.snapshot.write_text(text if mode is None else with_zones(text, mode))
        desc = {**description(asked[which % len(asked)]), "admin_comment": foreign}
        assert visible(cached, cached.submit(desc)) == visible(uncached, uncached.submit(desc))
    assert cached.logged() == uncached.logged()


ALICE = Request(uid=1001, account="vision", per_job=1, minutes=60)
SHARE = RuleModel("share", "user", limits={"gpus_total": 10_000})
TIME = RuleModel("time", "job", limits={"walltime": 7200})


@pytest.fixture(params=["5.1", "5.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    site = Site(tmp_path, [SHARE, TIME], lua=request.param)
    site.snapshot.write_text(snapshot(1, START, site.rules, [(ALICE, False)] * 6))
    return site


# Logs each field of job_desc that the script reads.
SPY = """
local submit = slurm_job_submit
function slurm_job_submit(desc, ...)
  local watched = setmetatable({}, {
    __index = function(_, name) slurm.log_info("%s", name) return desc[name] end,
    __newindex = desc,
  })
  return submit(watched, ...)
end
return slurm.SUCCESS
"""


def spied() -> PolicyScript:
    bundle = build_bundle(compiled([SHARE, TIME], "/nonexistent/decisions.log"))
    return PolicyScript(bundle.replace("return (function(...)", "local _ = (function(...)") + SPY)


def test_a_cached_job_reads_each_field_once_and_no_user_name() -> None:
    script = spied()
    first, second = (script.submit(description(ALICE), PARTITIONS) for _ in range(2))
    fields = [name for _, name in second.log]
    assert len(set(fields)) == len(fields) < len(first.log)
    assert {"user_id", "tres_per_job"} <= set(fields)
    assert "user_name" not in fields


# Accepted jobs that differ in fields which the script reads early, late, or only for some jobs.
DIFFERENCES: list[dict[str, Any]] = [
    {},
    {"time_limit": 61},
    {"time_limit": 62},
    {"num_tasks": 2},
    {"num_tasks": 2, "time_limit": 61},
    {"qos": None, "default_qos": "normal"},
    {"min_cpus": 3},
    {"tres_per_job": None},
    {"partition": None},
    {"partition": "gpu,long"},
]


@settings(max_examples=examples(20, one_in=100), deadline=None)
@given(order=st.permutations(DIFFERENCES))
def test_jobs_that_differ_in_any_field_are_each_cached(order: Sequence[dict[str, Any]]) -> None:
    script = spied()
    alike = description(ALICE) | {"tres_per_job": "gres/gpu:0"}  # a job without GPUs always fits
    for change in order:
        judged = script.submit(alike | change, PARTITIONS)
        assert "user_name" in {name for _, name in judged.log}
    for change in reversed(order):
        found = script.submit(alike | change, PARTITIONS)
        fields = [name for _, name in found.log]
        assert found.accepted
        assert "user_name" not in fields
        assert len(set(fields)) == len(fields)


@pytest.mark.parametrize(
    "change",
    [
        {"tres_per_job": "gres/gpu:9"},
        {"tres_per_job": None, "tres_per_node": "gres/gpu:9"},
        {"tres_per_task": "gres/gpu:1", "num_tasks": 9},
        {"time_limit": 121},
        {"time_limit": 4294967294, "partition": "day"},
        {"array_inx": "0-9"},
        {"tres_per_job": None, "tres_per_node": "gres/gpu:1", "min_nodes": 9},
    ],
)
def test_a_larger_job_is_judged_in_full(site: Site, change: dict[str, Any]) -> None:
    partitions: list[ScalarFields] = [*PARTITIONS, {"name": "day", "default_time": 1440, "max_time": 1440}]
    desc = description(ALICE)
    assert site.submit(desc, partitions).accepted
    assert site.submit(desc, partitions).accepted
    assert not site.submit(desc | change, partitions).accepted


def test_a_changed_partition_is_noticed(site: Site) -> None:
    desc = description(ALICE) | {"time_limit": 4294967294}
    assert site.submit(desc).accepted
    longer: list[ScalarFields] = [{**part, "default_time": 180} for part in PARTITIONS]
    assert not site.submit(desc, longer).accepted
    exclusive = [{**part, "max_share": 0} for part in PARTITIONS]
    assert site.submit(desc, exclusive).accepted
    assert "cpus=1 " in site.logged()[0]
    assert "cpus=1 " not in site.logged()[-1]


def test_another_default_partition_is_noticed(site: Site) -> None:
    desc = description(ALICE) | {"partition": None, "time_limit": 4294967294}
    assert site.submit(desc).accepted
    assert site.submit(desc, [{"name": "day", "flag_default": 1, "default_time": 1440}]).accepted is False


def test_use_by_other_jobs_is_noticed(site: Site) -> None:
    desc = description(ALICE)
    assert [site.submit(desc).accepted for _ in range(6)] == [True] * 4 + [False] * 2
    site.second += 2
    site.snapshot.write_text(snapshot(2, site.second, site.rules, [(ALICE, False)] * 8))
    assert [site.submit(desc).accepted for _ in range(3)] == [True] * 2 + [False]


def test_a_new_snapshot_applies_to_cached_jobs(site: Site) -> None:
    desc = description(ALICE)
    assert all(site.submit(desc).accepted for _ in range(3))
    site.second += 2
    site.snapshot.write_text(snapshot(2, site.second, site.rules, [(ALICE, False)] * 10))
    assert not site.submit(desc).accepted
