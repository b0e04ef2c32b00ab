"""A refusal names the rule, its reason, the numbers, and a command that is accepted."""

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

PREFIX = "Try: "


def advice(verdict: ScriptDecision) -> str | None:
    """Return the options of the advised command."""
    for line, following in zip(verdict.messages, (*verdict.messages[1:], ""), strict=True):
        if line.startswith("  Try"):
            command = line.partition(":")[2].strip() or following.strip()
            assert command.startswith("sbatch ")
            assert command.endswith(" ...")
            return command.removeprefix("sbatch ").removesuffix("...").strip()
    return None


def sbatch_words(request: Request) -> list[str]:
    """Return the command line of a request."""
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


def test_a_refusal_names_rule_reason_numbers_advice_and_contact() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 8000})
    assert refusal(ALICE, rule, queue=(replace(ALICE, per_job=6),)) == [
        "Refused by rule share: Reason of share.",
        "  GPUs running + pending: used 6, limit 8, requested 4.",
        "  Try: sbatch --gpus=2 ...",
        "  Questions: gpu-help",
    ]


def test_if_nothing_fits_a_pending_job_to_cancel_is_named() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 4000})
    lines = refusal(ALICE, rule, queue=(ALICE, replace(ALICE, uid=1002)))
    assert lines[2:4] == [
        "  No smaller request fits the limits now. Wait for a job to end, or cancel one:",
        "    scancel 40",
    ]


def test_the_pending_job_to_cancel_uses_what_is_used_up() -> None:
    of_type = replace(ALICE, gpu_type="a100")
    newer = (replace(ALICE, gpu_type="v100"), replace(ALICE, per_job=None))
    for key in ("gpus_total:a100", "gpus_total"):
        rule = RuleModel("share", "user", limits={key: 4000 if ":" in key else 8000})
        lines = refusal(of_type, rule, queue=(of_type, *newer))
        assert lines[3] == f"    scancel {40 if ':' in key else 41}"


def test_a_missing_time_limit_is_explained() -> None:
    assert refusal(ALICE, RuleModel("days", "job", limits={"walltime": 1800})) == [
        "Refused by rule days: Reason of days.",
        "  time limit: limit 00:30:00, requested 01:00:00.",
        "  Without --time, the job gets the default time limit of partition gpu.",
        "  Try: sbatch --time=00:30:00 ...",
        "  Questions: gpu-help",
    ]


def test_advice_keeps_the_gpu_type() -> None:
    request = replace(ALICE, per_job=None, per_node=4, nodes=2)
    lines = refusal(request, RuleModel("size", "job", limits={"gpus": 3000}))
    assert "sbatch --nodes=1 --gres=gpu:a100:3 ..." in lines[2]


def test_a_range_of_nodes_counts_by_its_maximum_and_advice_names_one_number() -> None:
    request = replace(ALICE, per_job=None, per_node=2, nodes=1, most_nodes=3, n_tasks=8)
    assert refusal(request, RuleModel("size", "job", limits={"gpus": 4000}))[1:3] == [
        "  GPUs in one job: limit 4, requested 6.",
        "  Try: sbatch --nodes=2 ...",
    ]


def test_a_range_of_nodes_of_a_pending_job_counts_by_its_maximum() -> None:
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
        # The command is unknown, so the message names none.
        ({"script": None, "argc": 1, "argv": {0: "python"}, "name": "train"}, "--gpus=2 ..."),
    ],
)
def test_advice_begins_with_the_users_command(fields: dict[str, Any], advised: str) -> None:
    rule = RuleModel("size", "job", limits={"gpus": 2000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    verdict = script.submit(description(ALICE) | fields, PARTITIONS)
    assert verdict.messages[2] == f"  {PREFIX}{advised}"


def test_advice_keeps_the_spelling_of_a_type() -> None:
    script = PolicyScript(
        build_bundle(
            compiled([RuleModel("size", "job", limits={"gpus": 2000})], "/nonexistent/decisions.log")
        )
    )
    desc = description(ALICE) | {"tres_per_job": "gres:gpu:A100:4"}
    assert advice(script.submit(desc, PARTITIONS)) == "--gpus=A100:2"


def test_use_of_a_whole_group_is_labeled_as_such() -> None:
    rule = RuleModel("together", "group", limits={"gpus_total": 8000})
    lines = refusal(ALICE, rule, queue=(replace(ALICE, uid=1002, per_job=8),))
    assert lines[1] == ("  GPUs running + pending: used 8, limit 8, requested 4 (limit shared by group")


def test_mode_advise_accepts_the_job_with_a_message() -> None:
    rule = RuleModel("share", "job", mode="advise", limits={"gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    verdict = script.submit(description(ALICE), PARTITIONS)
    assert verdict.accepted
    assert verdict.messages[0] == "Violates rule share: Reason of share."
    assert "  Warning only; the job was accepted." in verdict.messages


def test_mode_observe_prints_no_message() -> None:
    rule = RuleModel("share", "job", mode="observe", limits={"gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    assert script.submit(description(ALICE), PARTITIONS).messages == ()


@pytest.mark.parametrize("why", ["word " * 60, "길고 긴 이유를 여기에 적는다 " * 20])
def test_lines_are_short(why: str) -> None:
    table = compiled([RuleModel("size", "job", limits={"gpus": 0})], "/nonexistent/decisions.log")
    table["rules"][0]["why"] = why  # type: ignore[index]
    verdict = PolicyScript(build_bundle(table)).submit(description(ALICE), PARTITIONS)
    assert all(len(line) <= 85 for line in verdict.messages)
    assert "".join(verdict.messages).replace(" ", "").count(why.split()[0]) == why.count(why.split()[0])
