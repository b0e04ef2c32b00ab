"""A refusal says which rule, why, the numbers, and a command that is then accepted."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision

from .compile import compiled
from .fuzzing import examples
from .model import Request, RuleModel
from .policystrategies import limits_of
from .render import PARTITIONS, description, record
from .strategies import requests

MARK = "Try: "


def advice(verdict: ScriptDecision) -> str | None:
    """The options of the advised command."""
    for line, following in zip(verdict.messages, (*verdict.messages[1:], ""), strict=True):
        if line.startswith("  Try"):
            command = line.partition(":")[2].strip() or following.strip()
            assert command.startswith("sbatch ")
            assert command.endswith(" ...")
            return command.removeprefix("sbatch ").removesuffix("...").strip()
    return None


def sbatch_words(request: Request) -> list[str]:
    """The request as a user would type it."""
    values = {
        "--gpus": request.per_job,
        "--gpus-per-task": request.per_task,
        "--nodes": request.nodes if request.most_nodes is None else f"{request.nodes}-{request.most_nodes}",
        "--ntasks": request.n_tasks,
        "--time": request.minutes,
        "--partition": request.partition,
        "--account": request.account,
        "--array": None if request.array_tasks is None else f"1-{request.array_tasks}",
    }
    words = [f"{option}={value}" for option, value in values.items() if value is not None]
    if request.per_node is not None:
        words.append(f"--gres=gpu:{request.per_node}")
    if request.shards_per_node is not None:
        words.append(f"--gres=shard:{request.shards_per_node}")
    return [*words, "--wrap=true"]


@settings(max_examples=examples(50, one_in=10))
@given(
    job=limits_of("job"),
    user=limits_of("user"),
    group=limits_of("group"),
    queue=st.lists(requests(), max_size=4),
    request=requests(),
)
def test_the_advised_command_is_accepted(
    job: dict[str, float],
    user: dict[str, float],
    group: dict[str, float],
    queue: list[Request],
    request: Request,
) -> None:
    rules = [
        RuleModel("job", "job", limits=job),
        RuleModel("user", "user", limits=user),
        RuleModel("group", "group", limits=group),
    ]
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")))
    script.set_jobs([record(number, queued) for number, queued in enumerate(queue)])
    words = sbatch_words(request)

    def ask(*more: str) -> ScriptDecision:
        desc = parse_command([*words[:-1], *more, words[-1]], {}).description(request.uid, "alice")
        return script.submit(desc, PARTITIONS)

    refusal = ask()
    assume(not refusal.accepted)
    options = advice(refusal)
    if options is not None:
        verdict = ask(*shlex.split(options))
        assert verdict.accepted, (words, options, verdict.messages)
    elif not request.nodes or request.per_node is None:
        smallest = replace(request, nodes=None, most_nodes=None, n_tasks=None, array_tasks=None, minutes=1)
        for size in ("per_job", "per_node", "per_task", "shards_per_node"):
            if getattr(request, size) is not None:
                smallest = replace(smallest, **{size: 1})  # type: ignore[arg-type]
        assert not script.submit(description(smallest), PARTITIONS).accepted


def refusal(request: Request, *rules: RuleModel, queue: tuple[Request, ...] = ()) -> list[str]:
    script = PolicyScript(build_bundle(compiled(list(rules), "/nonexistent/decisions.log")))
    script.set_jobs([record(40 + number, queued) for number, queued in enumerate(queue)])
    verdict = script.submit(description(request), PARTITIONS)
    assert not verdict.accepted
    return list(verdict.messages)


ALICE = Request(uid=1001, account="vision", per_job=4)


def test_a_refusal_names_rule_reason_numbers_remedy_and_contact() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 8000})
    assert refusal(ALICE, rule, queue=(replace(ALICE, per_job=6),)) == [
        "Refused by rule share: Reason of share.",
        "  GPUs running + pending: used 6, limit 8, requested 4.",
        "  Try: sbatch --gpus=2 ...",
        "  Questions: gpu-help",
    ]


def test_when_nothing_fits_a_pending_job_to_cancel_is_named() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 4000})
    lines = refusal(ALICE, rule, queue=(ALICE, replace(ALICE, uid=1002)))
    assert lines[2:4] == [
        "  Nothing fits now. Wait for a job to end, or cancel one:",
        "    scancel 40",
    ]


def test_a_missing_time_limit_is_explained() -> None:
    assert refusal(ALICE, RuleModel("days", "job", limits={"walltime": 1800})) == [
        "Refused by rule days: Reason of days.",
        "  time limit: limit 00:30:00, requested 01:00:00.",
        "  Without --time the job gets the default of partition gpu.",
        "  Try: sbatch --time=00:30:00 ...",
        "  Questions: gpu-help",
    ]


def test_typed_requests_keep_their_type() -> None:
    request = replace(ALICE, per_job=None, per_node=4, nodes=2)
    lines = refusal(request, RuleModel("size", "job", limits={"gpus": 3000}))
    assert "sbatch --nodes=1 --gres=gpu:a100:3 ..." in lines[2]


def test_a_range_of_nodes_counts_with_its_most_and_the_remedy_names_one_number() -> None:
    request = replace(ALICE, per_job=None, per_node=2, nodes=1, most_nodes=3, n_tasks=8)
    assert refusal(request, RuleModel("size", "job", limits={"gpus": 4000}))[1:3] == [
        "  GPUs in one job: limit 4, requested 6.",
        "  Try: sbatch --nodes=2 ...",
    ]


def test_a_pending_range_of_nodes_goes_on_counting_with_its_most() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 8000})
    pending = replace(ALICE, per_job=None, per_node=2, nodes=1, most_nodes=3)
    lines = refusal(ALICE, rule, queue=(pending,))
    assert lines[1] == "  GPUs running + pending: used 6, limit 8, requested 4."


@pytest.mark.parametrize(
    ("fields", "advised"),
    [
        ({}, "sbatch --gpus=2 ..."),
        ({"script": None, "argc": 1}, "srun --gpus=2 ..."),
        ({"script": None, "argc": 0}, "salloc --gpus=2 ..."),
        ({"script": None, "argc": 1, "name": "interactive"}, "salloc --gpus=2 ..."),  # from Slurm 24.11 on
        ({"script": None, "argc": None}, "--gpus=2 ..."),  # better none than a wrong one
    ],
)
def test_the_remedy_begins_with_the_command_that_was_typed(fields: dict[str, Any], advised: str) -> None:
    rule = RuleModel("size", "job", limits={"gpus": 2000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    verdict = script.submit(description(ALICE) | fields, PARTITIONS)
    assert verdict.messages[2] == f"  {MARK}{advised}"


def test_the_spelling_of_a_type_is_kept() -> None:
    script = PolicyScript(
        build_bundle(
            compiled([RuleModel("size", "job", limits={"gpus": 2000})], "/nonexistent/decisions.log")
        )
    )
    desc = description(ALICE) | {"tres_per_job": "gres:gpu:A100:4"}
    assert advice(script.submit(desc, PARTITIONS)) == "--gpus=A100:2"


def test_what_a_whole_group_uses_is_said_to_be_the_groups() -> None:
    rule = RuleModel("together", "group", limits={"gpus_total": 8000})
    lines = refusal(ALICE, rule, queue=(replace(ALICE, uid=1002, per_job=8),))
    assert lines[1] == ("  GPUs running + pending: used 8, limit 8, requested 4 (all of group group-together")


def test_advice_lets_the_job_in_and_says_so() -> None:
    rule = RuleModel("share", "job", mode="advise", limits={"gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    verdict = script.submit(description(ALICE), PARTITIONS)
    assert verdict.accepted
    assert verdict.messages[0] == "Violates rule share: Reason of share."
    assert "  Warning only; the job was accepted." in verdict.messages


def test_observing_says_nothing_to_the_user() -> None:
    rule = RuleModel("share", "job", mode="observe", limits={"gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    assert script.submit(description(ALICE), PARTITIONS).messages == ()


@pytest.mark.parametrize("why", ["word " * 60, "길고 긴 이유를 여기에 적는다 " * 20])
def test_lines_stay_short(why: str) -> None:
    table = compiled([RuleModel("size", "job", limits={"gpus": 0})], "/nonexistent/decisions.log")
    table["rules"][0]["why"] = why  # type: ignore[index]
    verdict = PolicyScript(build_bundle(table)).submit(description(ALICE), PARTITIONS)
    assert all(len(line) <= 85 for line in verdict.messages)
    assert "".join(verdict.messages).replace(" ", "").count(why.split()[0]) == why.count(why.split()[0])
