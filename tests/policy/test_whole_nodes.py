"""An exclusive job takes every GPU of its nodes, asked for or not, and so they count."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.policy.bundle import build_bundle
from slurm_gpu.policy.script import PolicyScript, Verdict

from .model import Request, RuleModel
from .render import PARTITIONS, compiled, description, record

ALICE = Request(uid=1001, account="vision")
RULES = [
    RuleModel("size", "job", limits={"gpus": 8000}),
    RuleModel("share", "user", limits={"gpus_total": 8000}),
]


def script() -> PolicyScript:
    table = compiled(RULES, "/nonexistent/decisions.log", partition_gpus={"gpu": 4, "long": 2})
    return PolicyScript(build_bundle(table))


def ask(policy: PolicyScript, **fields: Any) -> Verdict:
    return policy.submit(description(ALICE) | fields, PARTITIONS)


def test_an_exclusive_job_counts_all_gpus_of_its_nodes() -> None:
    policy = script()
    assert ask(policy, shared=0, min_nodes=2).accepted
    assert not ask(policy, tres_per_job="gres:gpu:1").accepted


def test_a_refusal_says_why_gpus_count_that_were_not_asked_for() -> None:
    verdict = ask(script(), shared=0, min_nodes=3)
    assert "  GPUs in one job: limit 8, requested 12." in verdict.messages
    assert "  A job that has its nodes to itself takes all their GPUs, asked for or not." in verdict.messages


@pytest.mark.parametrize("shared", [1, 2, 65534])
def test_other_jobs_take_what_they_ask_for(shared: int) -> None:
    assert ask(script(), shared=shared, min_nodes=100).accepted


def test_of_several_partitions_the_least_counts() -> None:
    assert ask(script(), shared=0, min_nodes=4, partition="gpu,long").accepted
    assert not ask(script(), shared=0, min_nodes=4, partition="gpu").accepted
    assert ask(script(), shared=0, min_nodes=4, partition="elsewhere").accepted


def test_partitions_that_give_whole_nodes_make_every_job_exclusive() -> None:
    whole = [dict(part) | {"max_share": 0} for part in PARTITIONS]
    assert not script().submit(description(ALICE) | {"min_nodes": 3}, whole).accepted


def test_a_pending_exclusive_job_goes_on_counting_in_the_table() -> None:
    policy = script()
    verdict = ask(policy, shared=0, min_nodes=2)
    policy.set_jobs([record(1, ALICE, admin_comment=verdict.desc["admin_comment"])])
    assert not ask(policy, tres_per_job="gres:gpu:1").accepted
