"""Each limit of policy.yaml has all its parts; one that was forgotten fails here by the limit's key."""

from __future__ import annotations

import re

import pytest

from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, LimitValue, Scope
from slurm_gpu.policy.language.model import GpuLimit, Per, WalltimeStep
from slurm_gpu.policy.native.fields import LimitScope, native_fields
from tests.docs.pages import ROOT

from .judgement import HELD_WHILE_PENDING, SUMS
from .policystrategies import EVERY, OF_A_JOB, OF_A_PERIOD, OF_A_SUM, OF_WHAT_RUNS

VALUES: dict[LimitUnit, LimitValue] = {
    LimitUnit.GPUS: GpuLimit(all_mgpu=4000, by_type_mgpu={"a100": 2000}),
    LimitUnit.COUNT: 4,
    LimitUnit.MEMORY: 4096,
    LimitUnit.WALLTIME: (WalltimeStep(from_mgpu=0, limit_s=3600),),
    LimitUnit.NAMES: ("a",),
    LimitUnit.GPU_HOURS: {"week": 10.0},
}


def test_the_script_measures_each_limit_that_a_submission_can_exceed() -> None:
    script = (ROOT / "plugins/job_submit/measures.lua").read_text()
    table = script.partition("\nlocal LIMITS = {")[2].partition("\n}\n")[0]
    measured = {*re.findall(r'\bkey = "(\w+)"', table), "gpu_hours"}
    # Names are looked up in a list of what is allowed (limits.lua), and a job over a running limit may wait.
    others = {kind.key for kind in LIMITS.values() if kind.measure is LimitUnit.NAMES}
    assert measured == {key for key, kind in LIMITS.items() if kind.scope is not Scope.RUNNING} - others


def test_the_strategies_draw_each_limit() -> None:
    assert {key.partition(":")[0] for key in EVERY} == set(LIMITS)


@pytest.mark.parametrize(
    ("keys", "scope"),
    [
        ([*OF_A_JOB], Scope.JOB),
        ([*OF_A_SUM], Scope.TOTAL),
        ([*SUMS], Scope.TOTAL),
        ([*OF_A_PERIOD], Scope.PERIOD),
        ([*OF_WHAT_RUNS], Scope.RUNNING),
        ([*HELD_WHILE_PENDING], Scope.RUNNING),
    ],
)
def test_the_model_sums_over_the_same_jobs(keys: list[str], scope: Scope) -> None:
    expected = {key for key, kind in LIMITS.items() if kind.scope is scope}
    assert {key.partition(":")[0] for key in keys} == expected


@pytest.mark.parametrize("kind", LIMITS.values(), ids=lambda kind: kind.key)
@pytest.mark.parametrize("place", LimitScope)
def test_slurms_own_limits_hold_it_or_a_reason_says_why_not(kind: LimitKind, place: LimitScope) -> None:
    (per, *_) = [per for per in Per if kind.allowed_per(per)]
    assert bool(native_fields(kind, VALUES[kind.measure], per, place)) != bool(kind.lua_alone)


@pytest.mark.parametrize("page", ["docs/policy.md", "docs/contracts.md", "etc/policy.yaml"])
def test_it_is_documented(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [key for key in LIMITS if not re.search(rf"\b{key}\b", text)] == []
