"""Advice on a request for GPUs in several forms reduces all forms consistently."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision

from .compile import compiled
from .model import Limit, Request, RuleModel
from .render import PARTITIONS, record
from .test_messages import advice

TOTAL = RuleModel("share", "user", limits={"gpus_total": 8000})
WITHOUT_OTHERS = "When other jobs have ended, try"


def ask(words: Sequence[str], *rules: RuleModel, queue: Sequence[Request] = ()) -> ScriptDecision:
    table = compiled(list(rules), "/nonexistent/decisions.log")
    script = PolicyScript(build_bundle(table), now=lambda: 1_000_000)
    script.set_jobs([record(40 + number, job) for number, job in enumerate(queue)])
    description = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
    return script.submit(description, PARTITIONS)


def limited(key: str, value: Limit) -> RuleModel:
    return RuleModel("size", "job", limits={key: value})


@pytest.mark.parametrize(
    ("words", "rule", "advised"),
    [
        ("--gpus=20 --gpus-per-node=4", TOTAL, "--nodes=2 --gpus=8 --gpus-per-node=4"),
        ("-N5 --gpus=20 --gpus-per-node=4", TOTAL, "--nodes=2 --gpus=8 --gpus-per-node=4"),
        ("--gpus=a100:16 --gpus-per-node=a100:4", TOTAL, "--nodes=2 --gpus=a100:8 --gpus-per-node=a100:4"),
        ("--gpus=24 --gpus-per-node=12", TOTAL, "--nodes=1 --gpus=8 --gpus-per-node=8"),
        ("--gpus=18 --gpus-per-task=3", TOTAL, "--ntasks=2 --gpus=6 --gpus-per-task=3"),
        ("-n10 --gpus=20 --gpus-per-task=2", TOTAL, "--ntasks=4 --gpus=8 --gpus-per-task=2"),
        ("-N4 --gpus-per-node=4 --gpus-per-task=2", TOTAL, "--nodes=2 --gpus-per-node=4 --gpus-per-task=2"),
        ("-n16 --gpus-per-node=4 --gpus-per-task=1", TOTAL, "--ntasks=8 --gpus-per-node=4 --gpus-per-task=1"),
        (
            "-N4 --ntasks-per-node=4 --gpus-per-node=4 --gpus-per-task=1",
            limited("gpus", 3000),
            "--nodes=1 --ntasks-per-node=3 --ntasks=3 --gpus-per-node=3 --gpus-per-task=1",
        ),
        (
            "-N4 -n8 --gpus=16 --gpus-per-node=4 --gpus-per-task=2",
            limited("gpus", 3000),
            "--nodes=1 --ntasks-per-node=1 --ntasks=1 --gpus=2 --gpus-per-node=2 --gpus-per-task=2",
        ),
        (
            "-N4 --gpus=16 --gpus-per-node=4",
            limited("nodes", 2),
            "--nodes=2 --gpus=8 --gpus-per-node=4",
        ),
        (
            "-N4 --gpus=16 --gpus-per-node=4",
            limited("gpus_per_node", 2),
            "--nodes=1 --gpus=2 --gpus-per-node=2",
        ),
        ("-n4 --gpus=16 --gpus-per-task=4", limited("tasks", 2), "--ntasks=2 --gpus=8 --gpus-per-task=4"),
        (
            "-p long --gpus=a100:16 --gpus-per-node=a100:4",
            limited("gpu_types", frozenset({"v100"})),
            "--gpus=v100:16 --gpus-per-node=v100:4",
        ),
        # Tasks or nodes with GPUs are mixed forms too.
        ("-n20 --gpus-per-task=2", TOTAL, "--ntasks=4"),
        ("-N5 --gres=gpu:4", TOTAL, "--nodes=2"),
        ("-n20 --ntasks-per-gpu=2", TOTAL, "--ntasks=16"),
    ],
)
def test_advice_reduces_every_form(words: str, rule: RuleModel, advised: str) -> None:
    """Nodes and tasks derived by sbatch are reduced too; the script cannot distinguish them."""
    assert advice(ask(shlex.split(words), rule)) == advised


def test_gpus_of_two_types_may_all_be_on_one_node() -> None:
    words = ["--gpus=a100:8", "--gres=gpu:v100:8"]
    assert not ask(words, limited("gpus_per_node", 15)).accepted
    assert ask(words, limited("gpus_per_node", 16)).accepted


@pytest.mark.parametrize("words", ["--gpus=8 --gpus-per-socket=2", "--gpus=8 --gres=gpu:a100:2,gpu:v100:2"])
def test_no_advice_is_given_for_forms_that_cannot_be_reduced(words: str) -> None:
    lines = ask(shlex.split(words), limited("gpus", 4000)).messages
    assert [line.strip() for line in lines[1:]] == [
        "GPUs in one job: limit 4, requested 8.",
        "Questions: gpu-help",
    ]


@st.composite
def mixed(draw: st.DrawFn) -> dict[str, int]:
    """Draw consistent options with GPUs in two or three forms."""
    of_task, on_node, nodes = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    per_node = of_task * on_node
    forms = {"--gpus": per_node * nodes, "--gpus-per-node": per_node, "--gpus-per-task": of_task}
    left_out = draw(st.sampled_from([None, *forms]))
    counts = {"--nodes": nodes, "--ntasks": on_node * nodes}
    more = draw(st.sets(st.sampled_from(sorted(counts))))
    return {name: value for name, value in forms.items() if name != left_out} | {
        name: counts[name] for name in more
    }


@given(
    asked=mixed(),
    limits=st.fixed_dictionaries(
        {"gpus": st.integers(1, 12).map(lambda n: n * 1000)},
        optional={"nodes": st.integers(1, 6), "tasks": st.integers(1, 8), "cpus": st.integers(1, 16)},
    ),
)
@example(asked={"--gpus-per-node": 6, "--gpus-per-task": 2}, limits={"gpus": 4000, "tasks": 1})
def test_advised_forms_are_consistent_and_accepted(asked: dict[str, int], limits: dict[str, Limit]) -> None:
    assert is_consistent(asked)
    rule = RuleModel("size", "job", limits=limits)
    verdict = ask([f"{name}={value}" for name, value in asked.items()], rule)
    if verdict.accepted:
        return
    advised = advice(verdict)
    if limits.keys() == {"gpus"}:
        assert advised is not None
    elif advised is None:
        return
    changed = dict(word.split("=") for word in shlex.split(advised))
    smaller = asked | {name: int(value) for name, value in changed.items()}
    assert is_consistent(smaller), (asked, advised)
    assert ask([f"{name}={value}" for name, value in smaller.items()], rule).accepted, (asked, advised)


def is_consistent(options: dict[str, int]) -> bool:
    """Return whether Slurm accepts these numbers together."""
    job, node, task = (options.get(f"--gpus{per}") for per in ("", "-per-node", "-per-task"))
    nodes, tasks = options.get("--nodes"), options.get("--ntasks")
    for part, whole in ((node, job), (task, job), (task, node)):
        if part is not None and whole is not None and whole % part:
            return False
    if job is not None and node is not None and nodes not in (None, job // node):
        return False
    return not (job is not None and task is not None and tasks not in (None, job // task))


ALICE = Request(uid=1001, account="vision", per_job=8)


def test_cancelling_a_job_is_advised_only_if_it_helps() -> None:
    """Cancelling a job does not help a request that exceeds the limit even in an empty queue."""
    full = [ALICE]
    fits = ask(["--gpus=4"], TOTAL, queue=full).messages
    assert fits[2:4] == (
        "  No smaller request fits the limits now. Wait for a job to end, or cancel one:",
        "    scancel 40",
    )
    impossible = ask(["--gpus=20", "--gpus-per-node=4"], TOTAL, queue=full).messages
    assert impossible[2:4] == (
        f"  No smaller request fits now. {WITHOUT_OTHERS}:",
        "    sbatch --nodes=2 --gpus=8 --gpus-per-node=4 ...",
    )
    assert ask(["--gpus=8", "--gpus-per-node=4"], TOTAL).accepted
    assert not any("scancel" in line for line in impossible)


def test_for_a_request_over_a_limit_of_one_job_cancelling_is_not_advised() -> None:
    lines = ask(["--gpus=6"], TOTAL, limited("gpus", 4000), queue=[ALICE]).messages
    assert lines[4] == f"  No smaller request fits now. {WITHOUT_OTHERS}: sbatch --gpus=4 ..."
    assert not any("scancel" in line for line in lines)


def test_if_a_groups_limit_is_used_up_squeue_is_advised() -> None:
    together = RuleModel("together", "group", limits={"gpus_total": 8000})
    others = Request(uid=1002, account="vision", per_job=8)
    lines = ask(["--gpus=1"], together, queue=[others]).messages
    assert "  No smaller request fits the limits now. Wait for a job to end; see: squeue" in lines


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("--gpus=a100:2 --gpus-per-node=v100:2", 4),
        ("-N2 --gpus=a100:2 --gpus-per-node=v100:2", 6),
        ("-n2 --gpus-per-task=v100:1 --gpus-per-node=a100:2", 4),
        ("--gpus=A100:4 --gpus-per-node=a100:2,v100:1", 5),
        ("-N2 --gpus=a100:4 --gpus-per-node=a100:2", 4),
    ],
)
def test_gpus_of_different_types_in_different_forms_add_up(words: str, gpus: int) -> None:
    """On Slurm 22.05, the job gets the largest number of GPUs of each type that any form requests."""
    assert ask(words.split(), limited("gpus", gpus * 1000)).accepted
    refusal = ask(words.split(), limited("gpus", gpus * 1000 - 1000))
    assert f"requested {gpus}." in refusal.messages[1]


def test_a_limit_on_one_type_counts_only_that_type_of_several_forms() -> None:
    words = ["-N2", "--gpus=a100:4", "--gpus-per-node=v100:2,a100:1"]
    assert ask(words, limited("gpus:a100", 4000), limited("gpus:v100", 4000)).accepted
    assert not ask(words, limited("gpus:v100", 3000)).accepted


def test_pending_jobs_count_the_gpus_of_every_form() -> None:
    nodes = {**record(1, Request(uid=1001, account="vision", per_job=2)), "tres_per_node": "gres:gpu:a100:2"}
    total = "cpu=2,mem=2G,node=1,gres/gpu=4,gres/gpu:a100=2"
    by_task = {"tres_per_job": None, "tres_per_task": "gres:gpu:v100:1", "tres_fmt_req_str": total}
    for row in (nodes | {"tres_per_job": "gres:gpu:v100:2"}, nodes | by_task):
        script = PolicyScript(build_bundle(compiled([TOTAL], "/nonexistent/decisions.log")))
        script.set_jobs([row])
        for gpus, fits in ((5, False), (4, True)):
            desc = parse_command([f"--gpus={gpus}", "--wrap=true"], {}).description(1001, "alice")
            assert script.submit(desc, PARTITIONS).accepted is fits
