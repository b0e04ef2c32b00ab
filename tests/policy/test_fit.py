"""A bundle in mode fit fills in missing options only if Slurm then allocates what the script counted."""

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .compile import compiled
from .model import SHARDS_PER_GPU, BundleModel, Request, RuleModel
from .render import PARTITIONS, description

TRAIN = BundleModel("train", 1000, cpus=16, mode="fit")
RULE = RuleModel("share", "job", limits={"cpus": 12})
HALF = SHARDS_PER_GPU // 2


def script(lua: str, *rules: RuleModel) -> PolicyScript:
    return PolicyScript(build_bundle(compiled(list(rules), "/nonexistent/decisions.log", [TRAIN])), lua=lua)


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_a_part_of_a_gpu_gets_its_cpus_per_task(lua: str) -> None:
    part = description(Request(uid=1001, account="vision", shards_per_node=HALF, n_tasks=1))
    verdict = script(lua).submit(part, PARTITIONS)
    assert verdict.accepted
    assert verdict.desc["cpus_per_task"] == verdict.desc["min_cpus"] == 8


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_one_task_on_two_nodes_gets_no_cpus_filled_in(lua: str) -> None:
    parts = description(
        Request(uid=1001, account="vision", shards_per_node=HALF, nodes=2, most_nodes=2, n_tasks=1)
    )
    verdict = script(lua, RULE).submit(dict(parts), PARTITIONS)
    assert verdict.accepted
    assert "cpus_per_task" not in verdict.desc
