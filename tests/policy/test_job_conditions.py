"""Rules with `jobs:` apply only to jobs of some size, GPU type or form."""

from __future__ import annotations

import functools

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import NodeResources, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json

from .checking import mistakes
from .model import PARTITIONS as MODEL_PARTITIONS
from .model import Request
from .render import PARTITIONS, description, record
from .users import Directory

TEXT = """\
version: 1
mode: enforce
groups: {all: {}}
rules:
  - {id: short, for: all, per: job, why: "Others need them.", jobs: %s, limits: {walltime: 2h}}
"""


@functools.cache
def bundle(jobs: str) -> str:
    source = parse_yaml(TEXT % jobs, "p.yaml")
    policy = check_policy(source)
    parts = MODEL_PARTITIONS.items()
    facts = SiteFacts(
        year=2026,
        partition_gpu_types={name: part.gpu_types for name, part in parts},
        partition_nodes={
            name: {NodeResources(part.gpus, part.cpus, part.cpus, 2, part.mib): 1000} for name, part in parts
        },
    )
    return build_bundle(compile_policy(policy, resolve_names(policy, source, Directory()), facts))


def accepts(jobs: str, job: Request, lua: str = "5.4") -> bool:
    return PolicyScript(bundle(jobs), lua=lua).submit(description(job), PARTITIONS).accepted


JOB = Request(1001, "vision", minutes=240)
ONE = {"per_job": 1}


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("jobs", "job", "applies"),
    [
        ("{gpu_types: [a100]}", {"per_job": 1, "gpu_type": "a100"}, True),
        ("{gpu_types: [v100]}", {"per_job": 1, "gpu_type": "a100"}, False),
        # Without a type, a job may get any type of its partitions.
        ("{gpu_types: [a100]}", ONE, True),
        ("{gpu_types: [v100]}", ONE, False),
        ("{gpu_types: [v100]}", {**ONE, "partition": "gpu,long"}, True),
        ("{gpu_types: [a100]}", {}, False),
        ("{at_least: {gpus: 2}}", ONE, False),
        ("{at_least: {gpus: 2}}", {"per_node": 1, "nodes": 1, "most_nodes": 2}, True),
        ("{at_most: {gpus: 0}}", ONE, False),
        ("{at_most: {gpus: 0}}", {}, True),
        ("{at_most: {nodes: 1}}", {"per_node": 1, "nodes": 1, "most_nodes": 2}, True),
        ("{at_most: {nodes: 1}}", {"per_node": 1, "nodes": 2}, False),
        ("{at_least: {walltime: 4h}}", ONE, True),
        ("{at_least: {walltime: 5h}}", ONE, False),
        ("{at_most: {walltime: 3h}}", {"minutes": 0}, False),
        ("{names: [jupyter, sys/*]}", {"name": "jupyter"}, True),
        ("{names: [jupyter, sys/*]}", {"name": "sys/dashboard/jupyter"}, True),
        ("{names: [jupyter, sys/*]}", {"name": "my-jupyter"}, False),
        ('{names: ["my  jupyter"]}', {"name": "my  jupyter"}, True),
        ("{array: true}", {"array_tasks": 3}, True),
        ("{array: true}", {}, False),
        ("{array: false}", {"array_tasks": 3}, False),
        ("{array: false, at_least: {gpus: 1, nodes: 2}}", {"per_node": 1, "nodes": 2}, True),
        ("{array: false, at_least: {gpus: 1, nodes: 2}}", {"nodes": 2}, False),
    ],
)
def test_a_rule_applies_to_jobs_that_may_meet_all_conditions(
    jobs: str, job: dict[str, object], applies: bool, lua: str
) -> None:
    values = {"minutes": 240, "uid": 1001, "account": "vision", **job}
    assert accepts(jobs, Request(**values), lua) != applies  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("jobs", "most"),
    [("{at_least: {gpus: 8}}", 1), ("{at_least: {nodes: 3}}", 2), ("{at_least: {walltime: 9h}}", None)],
)
def test_a_job_cannot_grow_into_the_conditions(jobs: str, most: int | None) -> None:
    job = Request(1001, "vision", per_node=4, n_tasks=8, minutes=240)
    verdict = PolicyScript(bundle(jobs)).submit(description(job), PARTITIONS)
    assert verdict.accepted
    assert verdict.desc.get("max_nodes") == most


def test_the_refusal_describes_the_jobs() -> None:
    refused = PolicyScript(bundle("{gpu_types: [a100], at_least: {gpus: 2}}")).submit(
        description(Request(1001, "vision", per_job=2, minutes=240)), PARTITIONS
    )
    assert refused.messages[:4] == (
        "Refused by rule short: Others need them.",
        "  The rule applies to jobs with GPUs that may be of type a100 and at least 2 GPUs.",
        "  time limit: limit 02:00:00, requested 04:00:00.",
        "  Try: sbatch --time=02:00:00 ...",
    )


def test_an_update_that_makes_a_rule_apply_is_judged_by_it() -> None:
    script = PolicyScript(bundle("{at_least: {gpus: 2}}"))
    one, two = (Request(1001, "vision", per_job=gpus, minutes=240) for gpus in (1, 2))
    changes = {"tres_per_job": description(two)["tres_per_job"]}
    assert not script.modify(changes, record(1, one), PARTITIONS).accepted
    assert script.modify({"time_limit": 230}, record(1, two), PARTITIONS).accepted
    assert not script.modify({"time_limit": 250}, record(1, two), PARTITIONS).accepted
    assert script.modify({"time_limit": 250}, record(1, one), PARTITIONS).accepted


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%s", "{}", "jobs of rule short is empty; allowed: at_least, at_most"),
        ("%s", "{gpus: 2}", "'gpus' is not a setting of"),
        ("%s", "{at_least: {}}", "jobs.at_least of rule short is empty"),
        ("%s", "{at_least: {gpus: {a100: 1}}}", "gpus: {'a100': 1} must be"),
        ("%s", "{array: 1}", "array: 1 must be true or false"),
        ("per: job", "per: user", "'walltime' is not allowed in a rule with per: user"),
        (
            "per: job",
            "per: user",
            "gpu_hours: hours are counted only for whole groups; leave jobs: out",
        ),
    ],
)
def test_mistakes(old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new)
    if "gpu_hours" in message:
        text = text.replace("walltime: 2h", "gpu_hours: {month: 9}")
    found = mistakes(text % "{array: true}" if "%s" in text else text)
    assert any(message in line for line in found), found


def test_the_page_and_json_describe_the_jobs() -> None:
    text = TEXT % "{at_least: {gpus: 0.5, nodes: 2}, at_most: {walltime: 1d}, array: false}"
    policy = check_policy(parse_yaml(text, "p.yaml"))
    (rule, _) = make_page(policy).rules
    assert rule.whom == (
        "for all: every job; only jobs outside arrays with at least 0.5 GPUs, at least 2 nodes "
        "and a time limit of at most 1d"
    )
    (rule_json,) = to_json(policy)["rules"]
    assert rule_json["jobs"] == {
        "at_least": {"gpus": 0.5, "nodes": 2, "walltime_s": None},
        "at_most": {"gpus": None, "nodes": None, "walltime_s": 86400},
        "gpu_types": None,
        "array": False,
        "names": None,
    }
