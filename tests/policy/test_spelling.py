"""Values that Slurm may interpret differently from the script are refused if a limit applies."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description

ALICE = Request(uid=1001, account="vision")
RULES = [RuleModel("size", "job", accounts=frozenset({"vision"}), limits={"gpus": 2000})]


def ask(request: Request = ALICE, **fields: Any) -> ScriptDecision:
    script = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/decisions.log")))
    return script.submit(description(request) | fields, PARTITIONS)


@pytest.mark.parametrize("count", ["+8", "a100:+8", "-1", "1kb", "2x", "0x8", "1e3"])
def test_unusual_counts_of_gpus_are_refused(count: str) -> None:
    verdict = ask(tres_per_job=f"gres:gpu:{count}")
    assert not verdict.accepted
    assert any(f"gres:gpu:{count}" in line for line in verdict.messages)


@pytest.mark.parametrize(
    "array", ["0-+15", "+0-15", "0-15:+1", "0-15%+4", "0-15%4abc", "0-9%2%3", "0-9%2,10-15"]
)
def test_unusual_arrays_are_refused(array: str) -> None:
    assert not ask(array_inx=array).accepted


@pytest.mark.parametrize(
    "gres", ["gpu", "gpu:2", "gpu:a100", "gpu:a100:2", "gpu:3g.20gb", "gpu:h100-nvl:1", "gpu:tesla_t4=2"]
)
def test_plain_counts_and_type_names_pass(gres: str) -> None:
    assert ask(tres_per_node=f"gres:{gres}", array_inx="0-15:2%4").accepted


def test_unusual_values_pass_if_no_rule_applies() -> None:
    assert ask(Request(uid=1003, account="nlp"), tres_per_job="gres:gpu:+8").accepted


def test_unusual_amounts_per_gpu_are_refused() -> None:
    assert ask(tres_per_job="gres:gpu:1", cpus_per_tres="gres:gpu:8", mem_per_tres="gres:gpu:4096").accepted
    assert not ask(cpus_per_tres="gres:gpu:+64").accepted
    assert not ask(mem_per_tres="gres:gpu:+4096").accepted


def test_extremely_long_values_are_refused_without_parsing() -> None:
    """One #SBATCH line can be 4 MB long, and slurmctld would wait while the script parses it."""
    endless = ",".join(["gres:gpu:1"] * 200_000)
    verdict = ask(tres_per_node=endless)
    assert not verdict.accepted
    assert sum(map(len, verdict.messages)) < 400
    assert not ask(array_inx="1," * 200_000 + "2").accepted
    assert not ask(cpus_per_tres=endless).accepted


def test_the_longest_possible_array_is_counted() -> None:
    tasks = [RuleModel("tasks", "job", limits={"array_tasks": 20_000})]
    script = PolicyScript(build_bundle(compiled(tasks, "/nonexistent/decisions.log")))

    def accepted(n_tasks: int) -> bool:
        odd = ",".join(str(2 * n) for n in range(n_tasks))
        return script.submit(description(ALICE) | {"array_inx": odd}, PARTITIONS).accepted

    assert accepted(20_000)
    assert not accepted(20_001)


def test_submitted_texts_do_not_accumulate_in_memory() -> None:
    second = 1_000_000
    script = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/log")), now=lambda: second)

    def kilobytes() -> float:
        """Return the memory that Lua uses after a new job table."""
        nonlocal second
        second += 5
        script.set_jobs([])
        assert script.submit(description(ALICE), PARTITIONS).accepted
        return float(script._lua.execute('collectgarbage() return collectgarbage("count")'))

    before = kilobytes()
    for number in range(60):
        script.submit(description(ALICE) | {"account": "a" * 50_000 + str(number)}, PARTITIONS)
        script.submit(description(ALICE) | {"tres_per_node": "gpu:1," * 5000 + str(number)}, PARTITIONS)
    assert kilobytes() < before + 1000
