"""The Lua and the independent model reach the same decisions for any policy, queue and user actions.

`make fuzz` tests 50,000 job descriptions.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .compile import compiled
from .fuzzing import examples, is_long, seeded
from .model import Request, RuleModel
from .player import Player, Tally
from .policystrategies import LIMITS_TO_MEET
from .render import PARTITIONS, description, record
from .scenarios import LEAST_STEPS, Scenario, scenarios

# Hypothesis draws the smallest example first; one or two examples do not both meet and exceed a limit.
LEAST_EXAMPLES = 14


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_lua_and_model_agree(tmp_path: Path, lua: str) -> None:
    tally = Tally()
    # `make test` tests each limit with one version of Lua, `make fuzz` with all.
    limits = LIMITS_TO_MEET if is_long() else LIMITS_TO_MEET[LUA_VERSIONS.index(lua) :: len(LUA_VERSIONS)]
    descriptions = examples(0) / len(LUA_VERSIONS)

    # Without jobs in the queue no job is updated, so a few more examples are needed.
    examples_of_each = math.ceil(1.2 * descriptions / LEAST_STEPS / len(limits))

    for limit in limits:

        @seeded(f"{lua} {limit}")
        @settings(
            max_examples=max(LEAST_EXAMPLES, examples_of_each),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not is_long(),
            phases=[Phase.generate] if is_long() else list(Phase),
        )
        @given(scenario=scenarios(limit))
        def agree(scenario: Scenario) -> None:
            Player(scenario, tmp_path, lua, tally).play()

        agree()
    print(f"Lua {lua}: {tally}")
    assert tally.judged >= descriptions
    missing = tally.missing(limits)
    assert not missing, f"no scenario had: {', '.join(missing)}"


def test_memory_of_a_pending_job_follows_the_default_per_gpu() -> None:
    """The job's record contains the default per CPU, which would give its 64 CPUs more memory."""
    waiting = Request(uid=1001, account="vision", per_job=2, cpus_per_gpu=32)
    rule = RuleModel("share", "user", limits={"memory_total": 3 * 16384})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    script.set_jobs([record(1, waiting)])
    one = Request(uid=1001, account="vision", per_job=1)
    assert script.submit(description(one), PARTITIONS).accepted
