"""No step exceeds the bounds of `adjust:`, for any limit and bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.reports.recommend.rules import RuleLimit, with_limit
from slurm_gpu.reports.recommend.search import STEP, LimitTrial, _steps
from tests.reports.recommending import policy

GPUS = RuleLimit("share", "gpus_running")
JOBS = RuleLimit("share", "jobs_running")
BOTH = policy(
    """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {grads: {accounts: [vision]}}
rules:
  - {id: share, for: grads, per: user, why: "Some each.", limits: {gpus_running: 2, jobs_running: 9}}
"""
)


def steps(of: PolicyInForce, bounds: dict[RuleLimit, tuple[int, int]] | None) -> list[LimitTrial]:
    return list(_steps(of, [GPUS, JOBS], bounds, []))


@settings(max_examples=200)
@given(
    st.tuples(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400)).map(sorted),
    st.sampled_from((GPUS, JOBS)),
)
def test_steps_are_within_the_bounds_and_at_most_the_step_size(numbers: list[int], limit: RuleLimit) -> None:
    unit = 1000 if limit is GPUS else 1
    low, old, high = (unit * number for number in numbers)
    found = steps(with_limit(BOTH, limit, old), {limit: (low, high)})
    for change in found:
        assert change.limit == limit, "what has no bounds is not moved"
        assert change.old == old != change.new
        assert low <= change.new <= high
        assert abs(change.new - old) <= max(STEP * old, unit)
        assert change.new % unit == 0
    assert {change.new > old for change in found} == {
        up for up, room in ((True, high), (False, low)) if room != old
    }


def test_without_bounds_nothing_is_moved_by_itself() -> None:
    assert steps(BOTH, {}) == []
    assert {change.limit for change in steps(BOTH, None)} == {GPUS, JOBS}
