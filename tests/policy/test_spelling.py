"""What Slurm reads in another way than it looks is refused where a limit binds, never counted as one."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.policy.bundle import build_bundle
from slurm_gpu.policy.script import PolicyScript, Verdict

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description

ALICE = Request(uid=1001, account="vision")
RULES = [RuleModel("size", "job", accounts=frozenset({"vision"}), limits={"gpus": 2000})]


def ask(request: Request = ALICE, **fields: Any) -> Verdict:
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
