"""The components of a het job count together for limits on one job."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision

from .compile import compiled
from .model import Limit, Request, RuleModel
from .render import PARTITIONS, description


def script(limits: dict[str, Limit], lua: str = "5.4", per: str = "job") -> PolicyScript:
    rule = RuleModel("size", per, limits=limits)
    return PolicyScript(build_bundle(compiled([rule], "/dev/null")), lua=lua)


def submit(plugin: PolicyScript, *gpus: int | None, uid: int = 1001) -> list[ScriptDecision]:
    """Submit a het job with a component for each number of GPUs until one is refused."""
    decisions = []
    for offset, number in enumerate(gpus):
        request = Request(uid, "vision", per_node=number, minutes=60)
        decisions.append(plugin.submit(description(request) | {"het_job_offset": offset}, PARTITIONS))
        if not decisions[-1].accepted:
            break
    return decisions


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("limits", "gpus", "accepted"),
    [
        ({"gpus": 4000}, (2, 2), [True, True]),
        ({"gpus": 4000}, (2, 2, 1), [True, True, False]),
        ({"gpus": 4000}, (4, None, None), [True, True, True]),
        ({"gpus:a100": 4000}, (3, 2), [True, False]),
        ({"nodes": 2}, (1, None, None), [True, True, False]),
        ({"gpu_hours": 3}, (2, 2), [True, False]),
        ({"cpus": 2}, (1, 1, 1), [True, True, False]),
        # Limits per node and limits on time apply to each component.
        ({"gpus_per_node": 2, "walltime": 3600}, (2, 2, 2), [True, True, True]),
    ],
)
def test_a_job_is_the_sum_of_its_components(
    limits: dict[str, Limit], gpus: tuple[int | None, ...], accepted: list[bool], lua: str
) -> None:
    plugin = script(limits, lua)
    for _ in range(2):  # the sums of the next het job begin at zero
        assert [one.accepted for one in submit(plugin, *gpus)] == accepted


def test_the_refusal_names_the_earlier_components() -> None:
    refused = submit(script({"gpus": 4000}), 3, 2)[-1]
    assert refused.messages[1:4] == (
        "  GPUs in one job: limit 4, requested 2.",
        "  Earlier components of this het job count too: 3.",
        "  Try: sbatch --gres=gpu:a100:1 ...",
    )


def test_running_limits_count_all_components_of_one_job() -> None:
    plugin = script({"gpus_running": 4000, "jobs_running": 2}, per="user")
    assert [one.accepted for one in submit(plugin, 2, 2)] == [True, True]
    assert [one.accepted for one in submit(plugin, 1, 1, 1)] == [True, True, False]
    assert [one.accepted for one in submit(plugin, 3, 2)] == [True, False]


def test_jobs_of_others_in_between_do_not_count() -> None:
    plugin = script({"gpus": 4000})
    (first,) = submit(plugin, 3)
    assert first.accepted
    single = Request(1002, "vision", per_node=4, minutes=60)
    for _ in range(2):
        assert plugin.submit(description(single), PARTITIONS).accepted
    second = description(Request(1001, "vision", per_node=2, minutes=60)) | {"het_job_offset": 1}
    assert not plugin.submit(second, PARTITIONS).accepted
    assert [one.accepted for one in submit(plugin, 2, 2, uid=1002)] == [True, True]
