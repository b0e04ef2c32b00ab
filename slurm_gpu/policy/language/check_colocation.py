"""Checks `colocation:`, which jobs share a GPU with others, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ValueCheck, name_of
from slurm_gpu.policy.language.model import Colocation, Goal, Group, Mode

SLOWDOWN = 1.10
"""Of goal: considerate, where the file says nothing."""
MOST_SLOWDOWN = 10.0
MOST_TOGETHER = 8
LEAST_HOLD_S, MOST_HOLD_S = 10, 3600
"""Less than slurm-gpuctld needs to look and to act, and more than anybody should wait for a guess."""

_PLACE: Location = ("colocation",)
_KEYS = (
    "may",
    "must",
    "mode",
    "goal",
    "slowdown",
    "together",
    "largest",
    "hold",
    "planner",
    "model",
    "why",
)

PLANNERS = ("annealing", "greedy", "blossom", "lp", "fgd", "tetris", "sjf")
LEARNED_PLANNERS = ("dqngpu", "dqngpu_thesis", "deeprm_max", "deeprm_mean")
"""Those that `slurm-gpu colocation train` trains, which writes their model."""


class ColocationCheck(ValueCheck):
    """The one table."""

    def colocation(self, value: Any, groups: Mapping[str, Group]) -> Colocation:
        """All of it."""
        table = self.table(_PLACE, value, _KEYS)
        self.require(_PLACE, value, ("why",))
        usual = Colocation()
        goal = self.choice((*_PLACE, "goal"), table.get("goal", usual.goal), Goal)
        slowdown = self._number("slowdown", table, SLOWDOWN, 1.0, MOST_SLOWDOWN, "1.10")
        if "slowdown" in table and goal is not Goal.CONSIDERATE:
            self.fail(
                (*_PLACE, "slowdown"),
                "slowdown: only goal: considerate keeps to it; add that",
            )
        planner = self._planner(table)
        return Colocation(
            planner=planner,
            model=self._model(table, planner),
            may=self._groups("may", table, groups) if "may" in table else None,
            must=self._groups("must", table, groups) if "must" in table else (),
            mode=self.choice((*_PLACE, "mode"), table.get("mode", usual.mode), Mode),
            goal=goal,
            slowdown=slowdown if goal is Goal.CONSIDERATE else None,
            together=int(self._number("together", table, usual.together, 2, MOST_TOGETHER, "2", whole=True)),
            largest=self._number("largest", table, usual.largest, 0.0, 1.0, "0.75"),
            hold_s=self._hold(table["hold"]) if "hold" in table else usual.hold_s,
            why=self.text((*_PLACE, "why"), table["why"]) if "why" in table else "",
        )

    def _groups(self, key: str, table: dict[str, Any], groups: Mapping[str, Group]) -> tuple[str, ...]:
        names = self.names((*_PLACE, key), table[key], "[grads]")
        for index, name in enumerate(names):
            if name not in groups:
                hint = did_you_mean(name, groups)
                self.fail((*_PLACE, key, index), f"{key}: {shown(name)} is not a group; {hint}")
        return names

    def _planner(self, table: dict[str, Any]) -> str:
        said, there = table.get("planner", Colocation().planner), (*PLANNERS, *LEARNED_PLANNERS)
        if said in there:
            return str(said)
        hint = did_you_mean(said, there) if isinstance(said, str) else f"there are {', '.join(there)}"
        self.fail((*_PLACE, "planner"), f"planner: {shown(said)} is none; {hint}")
        return Colocation().planner

    def _model(self, table: dict[str, Any], planner: str) -> Path | None:
        learns = planner in LEARNED_PLANNERS
        if learns and "model" not in table:
            self.fail(
                (*_PLACE, "planner"),
                f"planner: {planner} needs model: the file that `slurm-gpu colocation train --planner "
                f"{planner}` writes",
            )
        if not learns and "model" in table:
            self.fail((*_PLACE, "model"), f"model: planner {planner} learns nothing that a model would have")
        if "model" not in table:
            return None
        return self.path((*_PLACE, "model"), table["model"], "/var/lib/slurm-gpu/dqngpu.npz")

    def _number(
        self,
        key: str,
        table: dict[str, Any],
        default: float,
        least: float,
        most: float,
        example: str,
        *,
        whole: bool = False,
    ) -> float:
        value = table.get(key, default)
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if is_number and (least <= value <= most):
            return float(value)
        bounds = f"{'a whole number' if whole else 'a number'} from {least:g} to {most:g}"
        self.fail(
            (*_PLACE, key),
            f"{key}: {shown(value)} must be {bounds}, such as {example}",
        )
        return default

    def _hold(self, value: Any) -> int:
        location = (*_PLACE, "hold")
        seconds = self.seconds(location, value)
        if seconds is not None and LEAST_HOLD_S <= seconds <= MOST_HOLD_S:
            return int(seconds)
        bounds = f"a time with its unit, from {LEAST_HOLD_S}s to {MOST_HOLD_S // 60}m"
        self.fail(location, f"{name_of(location)}: {shown(value)} must be {bounds}, such as 5m")
        return LEAST_HOLD_S
