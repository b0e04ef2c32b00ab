"""An exclusive job gets all GPUs of its nodes, requested or not, and all of them count."""

from __future__ import annotations

import functools
import shlex
from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScalarFields, ScriptDecision

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, record
from .test_messages import advice

ALICE = Request(uid=1001, account="vision")
RULES = [
    RuleModel("size", "job", limits={"gpus": 8000}),
    RuleModel("share", "user", limits={"gpus_total": 8000}),
]


def script() -> PolicyScript:
    table = compiled(RULES, "/nonexistent/decisions.log", partition_gpus={"gpu": 4, "long": 2})
    return PolicyScript(build_bundle(table))


def ask(policy: PolicyScript, **fields: Any) -> ScriptDecision:
    return policy.submit(description(ALICE) | fields, PARTITIONS)


def test_an_exclusive_job_counts_all_gpus_of_its_nodes() -> None:
    policy = script()
    assert ask(policy, shared=0, min_nodes=2).accepted
    assert not ask(policy, tres_per_job="gres:gpu:1").accepted


def test_a_refusal_explains_why_gpus_that_were_not_requested_count() -> None:
    verdict = ask(script(), shared=0, min_nodes=3)
    assert "  GPUs in one job: limit 8, requested 12." in verdict.messages
    why = "  An exclusive job gets all GPUs of its nodes, even those that it does not request."
    assert verdict.messages.count(why) == 1


def test_gpus_that_come_with_a_node_add_no_memory() -> None:
    """DefMemPerGPU applies only if GPUs are requested, and then to all GPUs of the node (Slurm 22.05)."""
    rule = RuleModel("memory", "job", limits={"memory": 32 * 1024})
    table = compiled([rule], "/nonexistent/decisions.log", partition_gpus={"gpu": 4})
    policy = PolicyScript(build_bundle(table))
    assert ask(policy, shared=0).accepted  # 32 CPUs with 1 GiB each
    assert not ask(policy, shared=0, tres_per_job="gres:gpu:1").accepted  # four GPUs with 16 GiB each


@pytest.mark.parametrize("shared", [1, 2, 65534])
def test_other_jobs_count_only_requested_gpus(shared: int) -> None:
    assert ask(script(), shared=shared, min_nodes=100).accepted


def test_the_partition_with_the_fewest_gpus_per_node_counts() -> None:
    assert ask(script(), shared=0, min_nodes=4, partition="gpu,long").accepted
    assert not ask(script(), shared=0, min_nodes=4, partition="gpu").accepted
    assert ask(script(), shared=0, min_nodes=4, partition="elsewhere").accepted


def test_partitions_with_whole_nodes_make_every_job_exclusive() -> None:
    whole = [dict(part) | {"max_share": 0} for part in PARTITIONS]
    assert not script().submit(description(ALICE) | {"min_nodes": 3}, whole).accepted


def test_a_pending_exclusive_job_in_the_table_counts() -> None:
    policy = script()
    verdict = ask(policy, shared=0, min_nodes=2)
    policy.set_jobs([record(1, replace(ALICE, nodes=2), admin_comment=verdict.desc["admin_comment"])])
    assert not ask(policy, tres_per_job="gres:gpu:1").accepted


def test_an_update_by_others_of_an_exclusive_job_counts_at_once() -> None:
    """The script does not judge updates by SlurmUser, so only the job table has the new size."""
    policy = script()
    verdict = ask(policy, shared=0, min_nodes=2)
    policy.set_jobs([record(1, replace(ALICE, nodes=1), admin_comment=verdict.desc["admin_comment"])])
    assert ask(policy, tres_per_job="gres:gpu:1").accepted


def test_a_pending_exclusive_job_counts_after_a_reload() -> None:
    """Only the AdminComment of a pending job shows that the job is exclusive."""
    verdict = ask(script(), shared=0, min_nodes=2)
    policy = script()
    policy.set_jobs([record(1, replace(ALICE, nodes=2), admin_comment=verdict.desc["admin_comment"])])
    assert not ask(policy, tres_per_job="gres:gpu:1").accepted


EXCLUSIVE = "slurm-gpu/1 t=abc w=1 r=size"
ALONE: list[ScalarFields] = [
    *PARTITIONS,
    {**PARTITIONS[0], "name": "alone", "flag_default": 0, "max_share": 0},
]


def update(row: dict[str, Any], **fields: Any) -> bool:
    """Return whether alice may update her only job, with 4 GPUs per node in `gpu` and `alone`."""
    gpus = {"gpu": 4, "long": 2, "alone": 4}
    policy = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/decisions.log", partition_gpus=gpus)))
    policy.set_jobs([row])
    return policy.modify({**fields}, row, ALONE, 1001).accepted


@pytest.mark.parametrize("comment", [EXCLUSIVE, "slurm-gpu/1 t=abc k=i w=1 l=vision r=size foreign"])
def test_an_update_to_more_nodes_counts_all_gpus_of_an_exclusive_job(comment: str) -> None:
    job = record(1, ALICE, admin_comment=comment)
    assert update(job, min_nodes=2, max_nodes=2)
    assert not update(job, min_nodes=3, max_nodes=3)
    assert update(record(1, ALICE, admin_comment="slurm-gpu/1 t=abc r=size w=1"), min_nodes=3)


def test_a_job_that_moves_to_a_partition_with_whole_nodes_counts_all_their_gpus() -> None:
    job = record(1, replace(ALICE, per_node=1, nodes=3))
    assert not update(job, partition="alone")
    assert update(job, partition="alone", min_nodes=2, max_nodes=2)
    assert update(job, partition="long")
    assert update(job, partition="alone,long")  # the smaller number of GPUs counts


def test_in_a_partition_with_whole_nodes_more_nodes_count_as_more_gpus() -> None:
    job = record(1, ALICE) | {"partition": "alone"}
    assert update(job, min_nodes=2)
    assert not update(job, min_nodes=3)


def test_an_exclusive_job_counts_the_gpus_of_its_new_partition() -> None:
    """32 CPUs are 8 per GPU on nodes with four GPUs, and 16 on nodes with two."""
    facts = {"partition_gpus": {"gpu": 4, "long": 2}, "partition_cpus": {"gpu": 32, "long": 32}}
    rule = RuleModel("cores", "job", limits={"cpus_per_gpu": 8})
    policy = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log", **facts)))
    job = record(1, replace(ALICE, nodes=1), admin_comment=EXCLUSIVE)
    policy.set_jobs([job])
    refusal = policy.modify({"partition": "long"}, job, ALONE, 1001)
    assert "  CPUs per GPU: limit 8, requested 16." in refusal.messages


def test_an_exclusive_job_over_a_lowered_limit_can_be_renamed_and_reduced() -> None:
    job = record(1, replace(ALICE, nodes=5), admin_comment=EXCLUSIVE)
    assert update(job, name="renamed")
    assert update(job, min_nodes=4, max_nodes=4)
    assert not update(job, min_nodes=6, max_nodes=6)


ADVICE = "Try: sbatch"
WITHOUT = "Try without --exclusive: sbatch"


@functools.cache
def script_of_jobs_up_to(limit: str, most: float | frozenset[str]) -> PolicyScript:
    rule = RuleModel("size", "job", limits={limit: most})
    return PolicyScript(build_bundle(compiled([rule], "/nonexistent/log", partition_gpus={"gpu": 4})))


def try_options(options: str, gpus: float) -> ScriptDecision:
    """Submit with these options, on nodes of 4 GPUs, with a limit on GPUs per job."""
    return try_limit(options, "gpus", gpus * 1000)


def try_limit(options: str, limit: str, most: float | frozenset[str]) -> ScriptDecision:
    words = [*shlex.split(options), "--partition=gpu", "--wrap=true"]
    desc = parse_command(words, {}).description(1001, "alice")
    return script_of_jobs_up_to(limit, most).submit(desc, PARTITIONS)


@pytest.mark.parametrize(
    ("options", "gpus", "advised"),
    [
        ("--exclusive --nodes=3", 8, f"{ADVICE} --nodes=2 ..."),
        ("--exclusive --nodes=3 --gres=gpu:1", 8, f"{ADVICE} --nodes=2 ..."),
        ("--exclusive --nodes=2-4 --ntasks=8 --ntasks-per-node=2", 4, f"{ADVICE} --nodes=1 --ntasks=2 ..."),
        ("--exclusive", 2, f"{WITHOUT} --gpus=2 ..."),
        ("--exclusive --nodes=3", 2, f"{WITHOUT} --nodes=2 --gpus=2 ..."),
        ("--gpus=4 --nodes=3", 2, f"{ADVICE} --nodes=2 --gpus=2 ..."),
        ("--exclusive", 0.5, f"{WITHOUT} ..."),
        ("--exclusive --gpus=1", 2, f"{WITHOUT} ..."),
        ("--exclusive --gpus=3", 2, f"{WITHOUT} --gpus=2 ..."),
        ("--exclusive --gres=gpu:4", 2, f"{WITHOUT} --gres=gpu:2 ..."),
        ("--gpus-per-socket=2 --sockets-per-node=2 --nodes=3", 8, f"{ADVICE} --nodes=2 ..."),
        ("--gpus-per-socket=a100:2 --sockets-per-node=2", 2, f"{ADVICE} --gpus-per-socket=a100:1 ..."),
        (
            "--gpus-per-socket=2 --sockets-per-node=4",
            2,
            f"{ADVICE} --sockets-per-node=2 --gpus-per-socket=1 ...",
        ),
    ],
)
def test_advice_for_whole_nodes_and_sockets(options: str, gpus: float, advised: str) -> None:
    lines = " ".join(line.strip() for line in try_options(options, gpus).messages)
    assert advised in lines


@pytest.mark.parametrize("sharing", ["", "--exclusive"])
@pytest.mark.parametrize("nodes", ["", "--nodes=3", "--nodes=1-3", "--ntasks=6 --ntasks-per-node=2"])
@pytest.mark.parametrize(
    "form", ["", "--gpus=7", "--gres=gpu:3", "--gpus-per-task=2", "--gpus-per-socket=2 --sockets-per-node=2"]
)
@pytest.mark.parametrize("gpus", [0.5, 1, 2, 3, 5, 6, 9])
def test_advised_options_are_accepted(sharing: str, nodes: str, form: str, gpus: float) -> None:
    refusal = try_options(f"{sharing} {nodes} {form}", gpus)
    if refusal.accepted:
        return
    advised = advice(refusal)
    if advised is not None:
        without = any("without --exclusive" in line for line in refusal.messages)
        verdict = try_options(f"{'' if without else sharing} {nodes} {form} {advised}", gpus)
        assert verdict.accepted, (advised, verdict.messages)
    else:
        assert gpus < 1


@pytest.mark.parametrize(
    ("options", "limit", "most", "advised"),
    [
        ("--exclusive --nodes=3", "cpus", 65, f"{ADVICE} --nodes=2 ..."),
        ("--exclusive --nodes=2", "cpus", 20, f"{WITHOUT} --gpus=8 ..."),
        ("--exclusive --nodes=2 --gres=gpu:1", "cpus", 20, f"{WITHOUT} ..."),
        ("--exclusive --nodes=2", "cpus_per_gpu", 4, f"{WITHOUT} --gpus=8 ..."),
        ("--exclusive --gres=gpu:2 -c 80", "cpus", 70, f"{ADVICE} --cpus-per-task=70 ..."),
    ],
)
def test_advice_removes_cpus_that_come_with_whole_nodes(
    options: str, limit: str, most: float, advised: str
) -> None:
    assert advised in " ".join(line.strip() for line in try_limit(options, limit, most).messages)


def test_no_advice_is_given_for_whole_nodes_with_the_wrong_gpus() -> None:
    verdict = try_limit("--exclusive", "gpu_types", frozenset({"v100"}))
    assert advice(verdict) is None
    assert "GPU type: allowed v100, requested any type in partition gpu" in verdict.messages[1]
