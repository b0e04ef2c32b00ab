"""Read tables of throughput in the format of Gavel's simulator (github.com/stanford-futuredata/gavel).

{"v100": {"('ResNet-18 (batch size 16)', 1)": {"null": 32.35, "('LM (batch size 5)', 1)": [30.1, 99.0]}}}

A row belongs to one application on a number of GPUs. The value of `null` is the application's steps per
second when it runs alone; 0 means that it cannot run on this GPU. The value of another application contains
the steps per second of both applications when they run together; [0, 0] means that they cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_gpu.colocation.co_runner_views import CoRunnerView
from slurm_gpu.colocation.tables.measured import LONGEST_NAME, Measured
from slurm_gpu.colocation.tables.strict_json import mapping, number, shown
from slurm_gpu.errors import InputError

_LONGEST_KEY = 4 * LONGEST_NAME
# Relative tolerance: a pair of applications is listed under both names, but was measured once.
_SAME = 1e-6

Key = tuple[str, int]


def tables_of(path: Path, decoded: Mapping[str, Any]) -> tuple[Measured, ...]:
    """Return the table of each GPU model for jobs of one GPU.

    Values for jobs of several GPUs are not used; only their format is checked. An application that cannot run
    on a model is not in that model's table. Raise InputError with the keys and the value if a value is
    invalid.
    """
    return tuple(_Reader(path, model).table(of_model) for model, of_model in decoded.items())


class _Reader:
    """Reads the table of one GPU model."""

    def __init__(self, path: Path, model: str) -> None:
        self._path, self._model = path, model

    def table(self, value: Any) -> Measured:
        rows = {
            self._key(text): (text, mapping(self._path, f"{self._model}: {text}", row, "{key: speeds}"))
            for text, row in self._object(value).items()
        }
        alone = {key: self._alone(text, row) for key, (text, row) in rows.items()}
        wanted = [key for key in rows if key[1] == 1]
        runs = {key: at for at, key in enumerate(key for key in wanted if alone[key] > 0)}
        speeds: dict[CoRunnerView, float] = {}
        for mine, (text, row) in rows.items():
            for other_text, pair in row.items():
                if other_text == "null":
                    continue
                other = self._key(other_text, text)
                steps = self._pair(f"{text}: {other_text}", pair)
                if mine[1] == other[1] == 1:
                    self._same_as_back(rows, mine, other, steps)
                    self._add(speeds, runs, alone, mine, other, steps)
        try:
            return Measured(
                self._model, tuple(key[0] for key in runs), tuple(map(alone.__getitem__, runs)), speeds
            )
        except ValueError as error:
            raise self._error("", str(error)) from None

    def _add(
        self,
        speeds: dict[CoRunnerView, float],
        runs: Mapping[Key, int],
        alone: Mapping[Key, float],
        mine: Key,
        other: Key,
        steps: tuple[float, float],
    ) -> None:
        if other not in alone:
            raise self._error(f"{mine}: {other}", "names an application that has no row of its own")
        if mine not in runs or other not in runs:
            if steps != (0, 0):
                raise self._error(
                    f"{mine}: {other}",
                    f"must be [0, 0], not {list(steps)}, because one of the two cannot run alone",
                )
            return
        one, co_runner = runs[mine], runs[other]
        if one == co_runner:
            speeds[one, (one,)] = min(1.0, (steps[0] + steps[1]) / 2 / alone[mine])
        else:
            speeds[one, (co_runner,)] = min(1.0, steps[0] / alone[mine])
            speeds[co_runner, (one,)] = min(1.0, steps[1] / alone[other])

    def _same_as_back(
        self,
        rows: Mapping[Key, tuple[str, Mapping[str, Any]]],
        mine: Key,
        other: Key,
        steps: tuple[float, float],
    ) -> None:
        back = rows[other][1].get(rows[mine][0]) if other in rows and other != mine else None
        if back is None:
            return
        theirs, ours = self._pair(f"{rows[other][0]}: {rows[mine][0]}", back)
        for here, there in zip(steps, (ours, theirs), strict=True):
            if abs(here - there) > _SAME * max(here, there):
                raise self._error(
                    f"{rows[mine][0]}: {rows[other][0]}",
                    f"{list(steps)} must equal the values of the pair in the other order, {[ours, theirs]}",
                )

    def _object(self, value: Any) -> Mapping[str, Any]:
        return mapping(self._path, self._model, value, "{\"('application', GPUs)\": …}")

    def _key(self, text: str, within: str = "") -> Key:
        try:
            found = ast.literal_eval(text) if len(text) <= _LONGEST_KEY else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found = None
        match found:
            case (str(name), int(scale)) if name and not isinstance(scale, bool) and scale > 0:
                return name, scale
        raise self._error(within, f"the key {shown(text)} must be \"('application', GPUs)\"")

    def _alone(self, text: str, row: Mapping[str, Any]) -> float:
        value = number(row.get("null"))
        if value is None or value < 0:
            raise self._error(
                f"{text}: null",
                f"{shown(row.get('null'))} must be the steps per second alone on a GPU, 0 or more",
            )
        return value

    def _pair(self, where: str, value: Any) -> tuple[float, float]:
        match value:
            case [first, second]:
                mine, theirs = number(first), number(second)
                if mine is not None and theirs is not None and mine >= 0 and theirs >= 0:
                    if (mine == 0) != (theirs == 0):
                        raise self._error(
                            where, f"{shown(value)}: 0 (cannot run together) must be set for both"
                        )
                    return mine, theirs
        raise self._error(where, f"{shown(value)} must be [own steps per second, the other's]")

    def _error(self, where: str, message: str) -> InputError:
        place = f"{self._model}: {where}" if where else self._model
        return InputError(str(self._path), 0, 0, f"{place}: {message}")
