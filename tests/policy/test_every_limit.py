"""Each limit of policy.yaml is implemented completely; a missing part fails a test with the limit's key."""

from __future__ import annotations

import re

import pytest

from slurm_gpu.policy.language.amounts import GpuLimit, LimitStep
from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, LimitValue, Scope
from slurm_gpu.policy.language.model import Per
from slurm_gpu.policy.native.fields import LimitScope, native_fields
from tests.docs.pages import ROOT

from .modelled_limits import PENDING_SUMS, RUNNING_SUMS, SUMS
from .policystrategies import (
    ALL_LIMITS,
    JOB_LIMITS,
    PENDING_LIMITS,
    PERIOD_LIMITS,
    RUNNING_LIMITS,
    TOTAL_LIMITS,
)

VALUES: dict[LimitUnit, LimitValue] = {
    LimitUnit.GPUS: GpuLimit(all_mgpu=4000, by_type_mgpu={"a100": 2000}),
    LimitUnit.COUNT: 4,
    LimitUnit.MEMORY: 4096,
    LimitUnit.WALLTIME: (LimitStep(from_mgpu=0, limit=3600),),
    LimitUnit.NAMES: ("a",),
    LimitUnit.HOURS: {"week": 10.0},
}


_TABLES = ("local LIMITS", "measures.hours")


def test_the_script_measures_each_limit() -> None:
    script = (ROOT / "plugins/job_submit/measures.lua").read_text()
    tables = [script.partition(f"\n{start} = {{")[2].partition("\n}\n")[0] for start in _TABLES]
    measured = {key for table in tables for key in re.findall(r'\bkey = "(\w+)"', table)}
    # Names are compared with a list of allowed names (limits.lua).
    assert measured == {key for key, kind in LIMITS.items() if kind.measure is not LimitUnit.NAMES}


def test_strategies_draw_each_limit() -> None:
    assert {key.partition(":")[0] for key in ALL_LIMITS} == set(LIMITS)


@pytest.mark.parametrize(
    ("keys", "scope"),
    [
        ([*TOTAL_LIMITS], Scope.TOTAL),
        ([one for one in SUMS if one not in PENDING_SUMS], Scope.TOTAL),
        ([*PENDING_LIMITS], Scope.PENDING),
        ([*PENDING_SUMS], Scope.PENDING),
        ([*PERIOD_LIMITS], Scope.PERIOD),
        ([*RUNNING_LIMITS], Scope.RUNNING),
        ([*RUNNING_SUMS], Scope.RUNNING),
    ],
)
def test_the_model_has_the_same_scope_for_each_limit(keys: list[str], scope: Scope) -> None:
    expected = {key for key, kind in LIMITS.items() if kind.scope is scope}
    assert {key.partition(":")[0] for key in keys} == expected


def test_the_model_has_each_limit_on_one_job() -> None:
    expected = {key for key, kind in LIMITS.items() if kind.allowed_per(Per.JOB)}
    assert {key.partition(":")[0] for key in JOB_LIMITS} == expected


@pytest.mark.parametrize("kind", LIMITS.values(), ids=lambda kind: kind.key)
@pytest.mark.parametrize("place", LimitScope)
def test_each_limit_has_native_fields_or_a_reason_for_having_none(kind: LimitKind, place: LimitScope) -> None:
    (per, *_) = [per for per in Per if kind.allowed_per(per)]
    assert bool(native_fields(kind, VALUES[kind.measure], per, place)) != bool(kind.lua_alone)


@pytest.mark.parametrize("page", ["docs/policy.md", "docs/contracts.md", "etc/policy.yaml"])
def test_each_limit_is_documented(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [key for key in LIMITS if not re.search(rf"\b{key}\b", text)] == []
