"""Checks `cancel_idle:`, which jobs are ended whose GPUs were never used, and after which warnings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ValueCheck
from slurm_gpu.policy.language.model import CancelIdle, Group, IdleAction, Mode
from slurm_gpu.text.units import format_duration

LEAST_WARN_S = 300
"""Nothing is judged sooner: slurm_gpu.alerts watches for four minutes."""
MOST_WARNINGS = 5

_PLACE: Location = ("cancel_idle",)
_KEYS = ("for", "exempt", "warn", "after", "then", "mode", "why")


class IdleCheck(ValueCheck):
    """The one table."""

    def cancel_idle(self, value: Any, groups: Mapping[str, Group]) -> CancelIdle:
        """All of it."""
        table = self.table(_PLACE, value, _KEYS)
        self.require(_PLACE, value, ("warn", "after", "why"))
        after_s = self.duration((*_PLACE, "after"), table["after"], "after") if "after" in table else None
        return CancelIdle(
            after_s=after_s or 0,
            warn_s=self._warnings(table["warn"], after_s) if "warn" in table else (),
            groups=self._idle_groups("for", table["for"], groups) if "for" in table else None,
            exempt=self._idle_groups("exempt", table["exempt"], groups) if "exempt" in table else (),
            how=self.choice((*_PLACE, "then"), table.get("then", IdleAction.CANCEL), IdleAction),
            mode=self.choice((*_PLACE, "mode"), table.get("mode", Mode.OBSERVE), Mode),
            why=self.text((*_PLACE, "why"), table["why"]) if "why" in table else "",
        )

    def _idle_groups(self, key: str, value: Any, groups: Mapping[str, Group]) -> tuple[str, ...]:
        names = self.names((*_PLACE, key), value, "[undergrads]")
        for index, name in enumerate(names):
            if name not in groups:
                hint = did_you_mean(name, groups)
                self.fail((*_PLACE, key, index), f"{key}: {shown(name)} is not a group; {hint}")
        return names

    def _warnings(self, value: Any, after_s: int | None) -> tuple[int, ...]:
        place: Location = (*_PLACE, "warn")
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_WARNINGS:
            self.fail(
                place,
                f"warn: {shown(value)} must be a list of 1 to {MOST_WARNINGS} times, such as [30m, 60m]",
            )
            return ()
        found = [self.duration((*place, index), item, "warn") for index, item in enumerate(value)]
        times = [one for one in found if one is not None]
        if len(times) < len(found):
            return ()
        if times[0] < LEAST_WARN_S:
            least = format_duration(LEAST_WARN_S)
            self.fail((*place, 0), f"warn: {value[0]} is already too soon: nothing is judged before {least}")
        for index, (before, later) in enumerate(itertools.pairwise(times), 1):
            if later <= before:
                self.fail((*place, index), f"warn: {value[index]} is already over at {value[index - 1]}")
        if after_s is not None and after_s <= times[-1]:
            self.fail(
                (*_PLACE, "after"),
                f"after: {format_duration(after_s)} is already over at the last warning, "
                f"{format_duration(times[-1])}; nothing is ended unwarned",
            )
        return tuple(times)
