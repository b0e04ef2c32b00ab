"""Rules with `at_least:` and `exactly:` are checked, described and enforced, with advice."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from slurm_gpu.controller.reporting.quota import QuotaLine
from slurm_gpu.policy.explain.replay import without_unknown
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.amounts import GpuLimit, JobAmounts, LimitStep, RuleLimits
from slurm_gpu.policy.language.limit_text import limit_texts
from slurm_gpu.policy.language.limits import AT_LEAST, LIMITS, flat_amounts
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.installed import GroupInForce, RuleInForce
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision
from slurm_gpu.policy.pages.policy_json import to_json

from .checking import check, mistakes
from .compile import compiled
from .model import ExceptionModel, Limit, Request, RuleModel
from .policystrategies import MINIMUMS
from .render import PARTITIONS, record
from .test_coverage_findings import HEAD, find_warnings


def policy_of(rule: str, tail: str = "") -> str:
    return f"{HEAD}  - {{id: a, for: all, per: job, why: w, {rule}}}\n{tail}"


def amounts_of(policy: Policy) -> dict[str, object]:
    return dict(flat_amounts(policy.rules[0]))


def ask(limits: dict[str, Limit], *words: str) -> ScriptDecision:
    table = compiled([RuleModel("r", "job", limits=limits)], "/nonexistent/decisions.log")
    desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
    return PolicyScript(build_bundle(table), now=lambda: 1_000_000).submit(desc, PARTITIONS)


def test_each_amount_of_one_job_can_be_a_minimum() -> None:
    fields = {one.name.removesuffix("_mib") for one in dataclasses.fields(JobAmounts)}
    assert {key.removeprefix(AT_LEAST) for key in MINIMUMS} == fields


def test_exact_amounts_are_minimums_and_maximums() -> None:
    policy = check(
        policy_of("limits: {nodes: 4}, at_least: {gpus: 1}, exactly: {cpus_per_gpu: {1: 4, 8: 6}}")
    )
    steps = [{"mgpu": 1000, "limit": 4}, {"mgpu": 8000, "limit": 6}]
    assert amounts_of(policy) == {
        "nodes": 4,
        "cpus_per_gpu": steps,
        "at_least:gpus": 1000,
        "at_least:cpus_per_gpu": steps,
    }
    assert policy.rules[0].exactly == JobAmounts()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("mode: enforce", "p.yaml:9:5: rule a lacks limits, at_least, exactly, options, set or defaults"),
        ("at_least: {}", "at_least of rule a is empty; allowed: gpus, gpus_per_node, nodes"),
        ("at_least: {array_tasks: 2}", "'array_tasks' is not a setting"),
        (
            "at_least: {gpus: {a100: 1}}",
            "gpus: write one number for all types, such as 1, and limit gpu_types",
        ),
        ("limits: {nodes: 2}, exactly: {nodes: 2}", "nodes: limits: already sets it; write it once"),
        ("at_least: {nodes: 2}, exactly: {nodes: 2}", "nodes: at_least: already sets it; write it once"),
        ("limits: {gpus: {min: 1}}", "for a minimum, write at_least: {gpus: 1} in the rule"),
    ],
)
def test_mistakes_are_reported(rule: str, message: str) -> None:
    (mistake,) = mistakes(policy_of(rule))
    assert message in mistake


@pytest.mark.parametrize("key", ["at_least", "exactly"])
def test_minimums_are_for_single_jobs(key: str) -> None:
    (mistake,) = mistakes(policy_of(f"{key}: {{gpus: 1}}").replace("per: job", "per: user"))
    assert f"'{key}' is not allowed in a rule with per: user; write it in a rule with per: job" in mistake


def exception(amounts: str) -> str:
    return f"exceptions: [{{rule: a, user: bob, {amounts}, until: 2026-12-05, why: w}}]\n"


def test_an_exception_replaces_minimums() -> None:
    rule = "exactly: {cpus_per_gpu: 4}, at_least: {gpus: 1}"
    policy = check(policy_of(rule, exception("limits: {cpus_per_gpu: 8}, at_least: {gpus: 0}")))
    assert flat_amounts(policy.exceptions[0]) == {"cpus_per_gpu": 8, "at_least:gpus": 0}
    (mistake,) = mistakes(policy_of(rule, exception("exactly: {nodes: 2}")))
    assert "rule a does not set this limit, so an exception cannot replace it" in mistake
    (mistake,) = mistakes(policy_of(rule, exception("granted_by: carol")))
    assert "exception 1 lacks limits, at_least or exactly" in mistake
    (same,) = find_warnings(
        f"  - {{id: a, for: all, per: job, why: w, {rule}}}\n", tail=exception("at_least: {gpus: 1}")
    )
    assert "rule a has the same limit, so the exception for bob has no effect" in same


@pytest.mark.parametrize(
    ("amounts", "other", "message"),
    [
        (
            "at_least: {nodes: 4}, limits: {nodes: 2}",
            "limits: {cpus: 8}",
            "no job satisfies both the minimum of nodes in rule a and its maximum",
        ),
        (
            "at_least: {gpus_per_node: {8: 4}}",
            "limits: {gpus_per_node: 2}",
            "no job with 8 GPUs satisfies both the minimum of gpus_per_node in rule a and the maximum of "
            "gpus_per_node in rule b",
        ),
        (
            "at_least: {gpus: 8}",
            "limits: {gpus_total: 4}",
            "no job satisfies both the minimum of gpus in rule a and the maximum of gpus_total in rule b",
        ),
        ("at_least: {nodes: 2}, limits: {nodes: 2}", "exactly: {nodes: 2}", None),
    ],
)
def test_a_minimum_above_a_maximum_is_reported(amounts: str, other: str, message: str | None) -> None:
    per = "user" if "gpus_total" in other else "job"
    found = find_warnings(
        f"  - {{id: a, for: vision, per: job, why: w, {amounts}}}\n",
        f"  - {{id: b, for: all, per: {per}, why: w, {other}}}\n",
    )
    assert [line.partition(": ")[2] for line in found] == ([] if message is None else [message])


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ("at_least: {gpus: 0}", "p.yaml:9:52: a minimum of 0 has no effect: gpus of rule a"),
        ("exactly: {gpus: 0}", None),
        (
            "limits: {gpus: 4}, at_least: {nodes: {8: 2}}",
            "p.yaml:9:71: the nodes from 8 GPUs on never applies: the rule allows at most 4 GPUs",
        ),
        (
            "limits: {gpus: 4}, exactly: {nodes: {8: 2}}",
            "p.yaml:9:70: the nodes from 8 GPUs on never applies: the rule allows at most 4 GPUs",
        ),
    ],
)
def test_a_minimum_without_effect_is_reported(amounts: str, message: str | None) -> None:
    found = find_warnings(f"  - {{id: a, for: all, per: job, why: w, {amounts}}}\n")
    assert found == ([] if message is None else [message])


def test_texts_say_at_least_and_exactly() -> None:
    four = (LimitStep(0, 4),)
    limits = RuleLimits(cpus_per_gpu=four, nodes=(LimitStep(0, 8),))
    at_least = JobAmounts(
        gpus=GpuLimit(1000),
        cpus_per_gpu=four,
        gpus_per_node=(LimitStep(8000, 4),),
        walltime=(LimitStep(0, 3600),),
    )
    assert limit_texts(limits, at_least, " per job") == [
        "at least 1 GPU per job",
        "at least 4 GPUs per node from 8 GPUs on per job",
        "at most 8 nodes per job",
        "exactly 4 CPUs per GPU per job",
        "time limit at least 1h",
    ]
    (rule,) = to_json(check(policy_of("at_least: {gpus: 1}, exactly: {memory: 64G}")))["rules"]
    assert (rule["limits"], rule["at_least"]) == ({"memory_mib": 65536}, {"gpus": 1, "memory_mib": 65536})


def test_quota_lists_minimums() -> None:
    rule = RuleInForce("r", GroupInForce("g"), "job", "w", "enforce", {"at_least:gpus": 1000})
    line = QuotaLine(rule, LIMITS["gpus"], None, 1000, None, is_minimum=True)
    assert (line.key, line.on, line.left) == ("at_least:gpus", "each job's minimum GPUs", None)
    assert line.to_json()["limit"] == 1


def test_the_replay_leaves_out_minimums_that_records_cannot_show() -> None:
    limits: dict[str, Limit] = {"at_least:gpus_per_node": 4, "at_least:tasks": 2, "at_least:gpus": 1000}
    own = {1001: ExceptionModel({"at_least:tasks": 1, "at_least:gpus": 500})}
    kept, remarks = without_unknown(
        compiled([RuleModel("r", "job", limits=limits, exceptions=own)], "/nonexistent/log")
    )
    (rule,) = kept["rules"]  # type: ignore[misc,union-attr]
    assert rule["limits"] == {"at_least:gpus": 1000}  # type: ignore[index,call-overload]
    assert rule["exceptions"][1001]["limits"] == {"at_least:gpus": 500}  # type: ignore[index,call-overload]
    assert remarks == [
        "at_least:gpus_per_node of rule r is left out: records do not contain GPUs per node",
        "at_least:tasks of rule r is left out: records do not contain MPI tasks",
    ]


@pytest.mark.parametrize(
    ("limits", "words", "numbers", "advised"),
    [
        ({"at_least:gpus": 1000}, ["-c4"], "GPUs in one job: at least 1, requested 0", "--gpus=1"),
        (
            {"at_least:gpus": 8000},
            ["-N2", "--gres=gpu:a100:2"],
            "GPUs in one job: at least 8, requested 4",
            "--gres=gpu:a100:4",
        ),
        (
            {"at_least:gpus": 8000},
            ["-N1-4", "--gres=gpu:2"],
            "GPUs in one job: at least 8, requested 2",
            "--gres=gpu:8",
        ),
        (
            {"at_least:gpus": 8000},
            ["-n4", "--gpus-per-task=1"],
            "GPUs in one job: at least 8, requested 4",
            "--gpus-per-task=2",
        ),
        (
            {"at_least:gpus_per_node": ((8000, 4),)},
            ["--gpus=8"],
            "GPUs on each node: at least 4, requested 1",
            "--gpus-per-node=4",
        ),
        (
            {"at_least:gpus_per_node": 4},
            ["-N2", "--gpus=6"],
            "GPUs on each node: at least 4, requested 1",
            "--gpus=8 --gpus-per-node=4",
        ),
        (
            {"at_least:gpus_per_node": 4},
            ["-N2", "--gres=gpu:2"],
            "GPUs on each node: at least 4, requested 2",
            "--nodes=1 --gres=gpu:4",
        ),
        (
            {"at_least:gpus_per_node": 4},
            ["-N2", "--ntasks-per-node=2", "--gres=gpu:2"],
            "GPUs on each node: at least 4, requested 2",
            "--gres=gpu:4",
        ),
        (
            {"at_least:nodes": 2},
            ["-n1", "--gres=gpu:4"],
            "nodes in one job: at least 2, requested 1",
            "--nodes=2 --ntasks=2",
        ),
        (
            {"at_least:nodes": 3},
            ["--gpus=2"],
            "nodes in one job: at least 3, requested 1",
            "--nodes=3 --gpus=3",
        ),
        (
            {"at_least:tasks": 4},
            ["-n2"],
            "tasks of one job (--ntasks): at least 4, requested 2",
            "--ntasks=4",
        ),
        (
            {"at_least:cpus_per_gpu": 4},
            ["--gpus=2"],
            "CPUs per GPU: at least 4, requested 0.5",
            "--cpus-per-gpu=4",
        ),
        (
            {"at_least:cpus_per_gpu": 4},
            ["--gpus=2", "-c2"],
            "CPUs per GPU: at least 4, requested 1",
            "--cpus-per-task=8",
        ),
        (
            {"cpus_per_gpu": 4, "at_least:cpus_per_gpu": 4},
            ["--gpus=2", "-c16"],
            "CPUs per GPU: limit 4, requested 8",
            "--cpus-per-task=8",
        ),
        (
            {"at_least:gpus": 1000, "cpus_per_gpu": 4, "at_least:cpus_per_gpu": 4},
            ["-N1"],
            "GPUs in one job: at least 1, requested 0",
            "--gpus=1 --cpus-per-gpu=4",
        ),
        (
            {"at_least:memory": 65536},
            ["--mem=16G"],
            "memory of one job: at least 64G, requested 16G",
            "--mem=64G",
        ),
        (
            {"at_least:memory_per_gpu": 65536},
            ["--gpus=2"],
            "memory per GPU: at least 64G, requested 16G",
            "--mem-per-gpu=64G",
        ),
        (
            {"at_least:walltime": 7200},
            ["-t", "1:00:00"],
            "time limit: at least 02:00:00, requested 01:00:00",
            "--time=02:00:00",
        ),
        (
            {"at_least:gpus_per_node": 4},
            ["-n8", "--gpus-per-task=1"],
            "GPUs on each node: at least 4, requested 1",
            None,
        ),
    ],
    ids=str,
)
def test_a_refusal_states_the_minimum_and_a_command_that_reaches_it(
    limits: dict[str, Limit], words: list[str], numbers: str, advised: str | None
) -> None:
    said = ask(limits, *words).messages
    expected = [f"{numbers}."]
    if numbers == "GPUs on each node: at least 4, requested 1":
        expected.append("Without --gpus-per-node, Slurm may place a single GPU on a node.")
    if advised is not None:
        expected.append(f"Try: sbatch {advised} ...")
    assert [line.strip() for line in said[1:-1]] == expected
    if advised is not None:
        assert ask(limits, *words, *advised.split()).accepted


@pytest.mark.parametrize(
    ("words", "reaches"),
    [
        (["-N2", "--gres=gpu:4"], True),
        (["--gpus=8", "--gpus-per-node=4"], True),
        (["-N2", "--ntasks-per-node=4", "--gpus-per-task=1"], True),
        (["-N1", "--gpus=8"], True),
        (["--gpus=8"], False),
        (["-N1-2", "--gpus=8"], False),
        (["-N1-2", "--gres=gpu:4"], True),
        (["-n8", "--ntasks-per-node=4", "--gpus-per-task=1"], False),  # Slurm may use more nodes
        (["-N2", "-n2", "--gpus-per-task=4"], True),
        (["-c4"], False),
    ],
    ids=str,
)
def test_gpus_of_each_node_are_those_that_the_request_names(words: list[str], reaches: bool) -> None:
    assert ask({"at_least:gpus_per_node": 4}, *words).accepted == reaches


def test_whole_nodes_have_all_their_gpus() -> None:
    rule = RuleModel("r", "job", limits={"at_least:gpus_per_node": 4})
    table = compiled([rule], "/nonexistent/decisions.log", partition_gpus={"gpu": 4, "long": 2})
    script = PolicyScript(build_bundle(table))
    for partition, accepted in (("gpu", True), ("long", False)):
        words = ["-p", partition, "--exclusive", "-N2", "--wrap=true"]
        desc = parse_command(words, {}).description(1001, "alice")
        assert script.submit(desc, PARTITIONS).accepted == accepted


def test_small_jobs_use_one_node_and_large_ones_whole_nodes() -> None:
    limits: dict[str, Limit] = {"nodes": ((1000, 1), (8000, 16)), "at_least:gpus_per_node": ((8000, 4),)}
    accepted = [["-c4", "-N2"], ["-N1", "--gpus=7"], ["-N2", "--gres=gpu:4"], ["-N3", "--gres=gpu:4"]]
    refused = [["-N2", "--gres=gpu:2"], ["-N4", "--gres=gpu:2"], ["-N2", "--gpus=8"]]
    assert all(ask(limits, *words).accepted for words in accepted)
    assert not any(ask(limits, *words).accepted for words in refused)


ALICE = Request(uid=1001, account="vision", per_node=2, nodes=2, most_nodes=2, minutes=30)


@pytest.mark.parametrize(
    ("limits", "changes", "accepted"),
    [
        ({"at_least:gpus": 4000}, {"tres_per_node": "gres:gpu:1"}, False),
        ({"at_least:gpus": 4000}, {"min_nodes": 1}, False),  # the job may then get one node
        ({"at_least:gpus": 2000}, {"min_nodes": 1}, True),
        ({"at_least:gpus": 8000}, {"time_limit": 10}, True),
        ({"at_least:gpus": 8000}, {"tres_per_node": "gres:gpu:3"}, True),
        ({"at_least:walltime": 1800}, {"time_limit": 20}, False),
        ({"at_least:walltime": 3600}, {"time_limit": 40}, True),
        ({"at_least:gpus_per_node": ((6000, 4),)}, {"tres_per_node": "gres:gpu:3"}, False),
        ({"at_least:gpus_per_node": 2}, {"min_nodes": 3, "max_nodes": 3}, True),
    ],
    ids=str,
)
def test_an_update_may_not_fall_below_a_minimum(
    limits: dict[str, Limit], changes: dict[str, str | int], accepted: bool
) -> None:
    script = PolicyScript(build_bundle(compiled([RuleModel("r", "job", limits=limits)], "/nonexistent/log")))
    row = record(7, ALICE)
    script.set_jobs([row])
    assert script.modify(changes, row, PARTITIONS, 1001).accepted == accepted


def test_a_job_that_moves_under_a_rule_needs_its_minimum() -> None:
    rule = RuleModel("r", "job", accounts=frozenset({"nlp"}), limits={"at_least:gpus": 8000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/log")))
    for gpus, accepted in ((2, False), (4, True)):
        row = record(7, replace(ALICE, per_node=gpus))
        script.set_jobs([row])
        desc = {"account": "nlp"}
        assert script.modify(desc, row, PARTITIONS, 1001).accepted == accepted


def test_the_rule_in_mode_advise_warns() -> None:
    rule = RuleModel("r", "job", mode="advise", limits={"at_least:gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/log")))
    desc = parse_command(["-c4", "--wrap=true"], {}).description(1001, "alice")
    verdict = script.submit(desc, PARTITIONS)
    assert verdict.accepted
    assert verdict.messages[1] == "  GPUs in one job: at least 1, requested 0."
