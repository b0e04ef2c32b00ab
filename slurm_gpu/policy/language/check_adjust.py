"""Checks the bounds within which the weekly review may move limits."""

from __future__ import annotations

from typing import Any

from slurm_gpu.config.checker import shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_limits import LimitsCheck
from slurm_gpu.policy.language.limit_value import single_value, value_text
from slurm_gpu.policy.language.limits import LIMITS, Scope
from slurm_gpu.policy.language.model import Adjust, Mode, PolicyRule

ADJUSTABLE = tuple(key for key, kind in LIMITS.items() if kind.scope is Scope.RUNNING)
"""Limits on what runs: of these the model of the cluster can tell what another value would do."""


class AdjustCheck(LimitsCheck):
    """`adjust:` of a rule."""

    def adjust(self, value: Any, rule: PolicyRule) -> tuple[Adjust, ...]:
        """The bounds of a rule, which is whole but for them."""
        location = (*rule.location, "adjust")
        table = self.table(location, value, tuple(LIMITS))
        if isinstance(value, dict) and not value:
            self.fail(location, "adjust is empty; write bounds such as {gpus_running: [8, 24]}")
        if rule.mode is not Mode.ENFORCE or rule.kind is not None or rule.when is not None:
            self.fail(
                location,
                "adjust: a review can foresee only rules with mode: enforce, and without kind: and when:",
                key=True,
            )
        found = [self._bounds((*location, key), item, key, rule) for key, item in table.items()]
        return tuple(bounds for bounds in found if bounds is not None)

    def _bounds(self, location: Location, value: Any, key: str, rule: PolicyRule) -> Adjust | None:
        if key not in ADJUSTABLE:
            what = "only limits on what runs can be moved"
            self.fail(location, f"{key!r}: {what}; allowed: {', '.join(ADJUSTABLE)}", key=True)
            return None
        if key not in self._keys_of(rule):
            self.fail(location, f"{key!r}: rule {rule.id} sets no such limit to move", key=True)
            return None
        now = single_value(rule, key)
        if now is None:
            self.fail(location, f"{key!r}: limits by type cannot be moved; write one number of all", key=True)
            return None
        if not isinstance(value, list) or len(value) != 2:
            self.fail(location, f"{key}: {shown(value)} must be two numbers, the least and the most: [8, 24]")
            return None
        numbers = [self.number((*location, index), item, LIMITS[key]) for index, item in enumerate(value)]
        low, high = numbers
        if low is None or high is None:
            return None
        if not 0 < low < high:
            self.fail(location, f"{key}: {shown(value)} must ascend, from more than 0 on")
        elif not low <= now <= high:
            self.fail(location, f"{key}: the limit, {value_text(key, now)}, is outside of {shown(value)}")
        else:
            return Adjust(key, low, high)
        return None

    @staticmethod
    def _keys_of(rule: PolicyRule) -> frozenset[str]:
        return frozenset(key for key, kind in LIMITS.items() if kind.of(rule.limits) is not None)
