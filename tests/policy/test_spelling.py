"""What Slurm reads in another way than it looks is refused where a limit binds, never counted as one."""

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
def test_a_count_of_gpus_that_is_not_plain(count: str) -> None:
    verdict = ask(tres_per_job=f"gres:gpu:{count}")
    assert not verdict.accepted
    assert any(f"gres:gpu:{count}" in line for line in verdict.messages)


@pytest.mark.parametrize(
    "array", ["0-+15", "+0-15", "0-15:+1", "0-15%+4", "0-15%4abc", "0-9%2%3", "0-9%2,10-15"]
)
def test_an_array_that_is_not_plain(array: str) -> None:
    assert not ask(array_inx=array).accepted


@pytest.mark.parametrize(
    "gres", ["gpu", "gpu:2", "gpu:a100", "gpu:a100:2", "gpu:3g.20gb", "gpu:h100-nvl:1", "gpu:tesla_t4=2"]
)
def test_plain_spellings_and_type_names_pass(gres: str) -> None:
    assert ask(tres_per_node=f"gres:{gres}", array_inx="0-15:2%4").accepted


def test_whoever_no_rule_binds_may_write_as_slurm_reads() -> None:
    assert ask(Request(uid=1003, account="nlp"), tres_per_job="gres:gpu:+8").accepted


def test_per_gpu_amounts_have_to_be_plain_too() -> None:
    assert ask(tres_per_job="gres:gpu:1", cpus_per_tres="gres:gpu:8", mem_per_tres="gres:gpu:4096").accepted
    assert not ask(cpus_per_tres="gres:gpu:+64").accepted
    assert not ask(mem_per_tres="gres:gpu:+4096").accepted


def test_what_is_longer_than_anyone_writes_is_not_read() -> None:
    """A script of 4 MB fits into one #SBATCH line, and slurmctld would wait."""
    endless = ",".join(["gres:gpu:1"] * 200_000)
    verdict = ask(tres_per_node=endless)
    assert not verdict.accepted
    assert sum(map(len, verdict.messages)) < 400
    assert not ask(array_inx="1," * 200_000 + "2").accepted
    assert not ask(cpus_per_tres=endless).accepted


def test_an_array_of_as_many_numbers_as_a_command_line_holds_is_counted() -> None:
    tasks = [RuleModel("tasks", "job", limits={"array_tasks": 20_000})]
    script = PolicyScript(build_bundle(compiled(tasks, "/nonexistent/decisions.log")))

    def accepted(n_tasks: int) -> bool:
        odd = ",".join(str(2 * n) for n in range(n_tasks))
        return script.submit(description(ALICE) | {"array_inx": odd}, PARTITIONS).accepted

    assert accepted(20_000)
    assert not accepted(20_001)


def test_what_users_write_does_not_stay_in_slurmctlds_memory() -> None:
    second = 1_000_000
    script = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/log")), now=lambda: second)

    def kilobytes() -> float:
        """Once a new table has settled what was asked before."""
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
