"""Read and write the project's own format of measured speeds, CSV or JSON; see docs/colocation.md#tables."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.colocation.co_runner_views import CoRunnerView, views_of
from slurm_gpu.colocation.tables.measured import LONGEST_NAME, Measured
from slurm_gpu.colocation.tables.strict_csv import read_rows
from slurm_gpu.colocation.tables.strict_json import mapping, number, shown
from slurm_gpu.errors import InputError
from slurm_gpu.files.atomic import whole_file, write_whole
from slurm_gpu.text.spreadsheet import armoured, bare

FORMAT = "slurm-gpu speeds 1"
_FIRST_COLUMNS = ("gpu_model", "application", "alone_per_s", "speed")
_CO_RUNNER = "co_runner_"
# The prefix in files of version 0.2.
_FORMER_CO_RUNNER = "beside_"


class _Builder:
    """Collects the speeds of one GPU model, in any order."""

    def __init__(self, gpu_model: str) -> None:
        self.gpu_model = gpu_model
        self._at: dict[str, int] = {}
        self.alone: dict[int, float] = {}
        self.speeds: dict[CoRunnerView, float] = {}
        self.lines: dict[CoRunnerView, int] = {}
        """The line number of each speed in a CSV file."""

    def index(self, name: str) -> int:
        return self._at.setdefault(name, len(self._at))

    def add(self, name: str, others: Sequence[str], speed: float, line: int = 0) -> None:
        """Add a speed; raise ValueError if it was added before."""
        view = self.index(name), tuple(sorted(map(self.index, others)))
        if view in self.speeds:
            raise ValueError("occurs twice")
        self.speeds[view] = speed
        self.lines[view] = line

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._at)

    def measured(self) -> Measured:
        return Measured(
            self.gpu_model,
            self.names,
            tuple(self.alone.get(at) for at in range(len(self._at))),
            self.speeds,
        )


def table_of_json(path: Path, decoded: Mapping[str, Any]) -> Measured:
    """Decode a file with `"format": "slurm-gpu speeds 1"`.

    If the file is invalid, raise InputError with the key and the value.
    """

    def wrong(where: str, message: str) -> InputError:
        return InputError(str(path), 0, 0, f"{where}: {message}")

    if decoded.get("format") != FORMAT:
        raise wrong("format", f"{shown(decoded.get('format'))} must be {shown(FORMAT)}")
    unknown = set(decoded) - {"format", "gpu_model", "applications", "together"}
    if unknown:
        raise wrong(min(unknown), "is unknown; the keys are format, gpu_model, applications, together")
    model = decoded.get("gpu_model")
    if not isinstance(model, str) or not model:
        raise wrong("gpu_model", f"{shown(model)} must be the name of the GPU model")
    builder = _Builder(model)
    applications = mapping(path, "applications", decoded.get("applications"), "{name: {alone_per_s}}")
    for name, about in applications.items():
        alone = mapping(path, f"applications: {name}", about, "{alone_per_s: number or null}")
        if set(alone) - {"alone_per_s"}:
            raise wrong(f"applications: {name}", f"{shown(about)} must contain only alone_per_s")
        at, value = builder.index(name), alone.get("alone_per_s")
        if value is not None:
            found = number(value)
            if found is None:
                raise wrong(f"applications: {name}: alone_per_s", f"{shown(value)} must be a number or null")
            builder.alone[at] = found
    groups = decoded.get("together", [])
    if not isinstance(groups, list):
        raise wrong("together", f"{shown(groups)} must be a list")
    for place, group in enumerate(groups):
        where = f"together[{place}]"
        try:
            _add_group(builder, applications, group)
        except ValueError as error:
            raise wrong(where, str(error)) from None
    try:
        return builder.measured()
    except ValueError as error:
        raise InputError(str(path), 0, 0, str(error)) from None


def _add_group(builder: _Builder, applications: Mapping[str, Any], group: Any) -> None:
    match group:
        case {"applications": [_, _, *_] as names, "speeds": list(speeds), **rest} if not rest:
            pass
        case _:
            raise ValueError(f"{shown(group)} must be {{applications: [two or more names], speeds: […]}}")
    strange = next((name for name in names if not isinstance(name, str) or name not in applications), None)
    if strange is not None:
        raise ValueError(f"{shown(strange)} must be one of `applications`")
    if len(speeds) != len(names):
        raise ValueError(f"{len(names)} applications have {len(speeds)} speeds")
    speeds_of: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for place, (name, value) in enumerate(zip(names, speeds, strict=True)):
        if value is None:
            continue
        speed = number(value)
        if speed is None:
            raise ValueError(f"the speed {shown(value)} of {name!r} must be a number from 0 to 1, or null")
        others = tuple(sorted((*names[:place], *names[place + 1 :])))
        speeds_of.setdefault((name, others), []).append(speed)
    for (name, others), values in speeds_of.items():
        try:
            builder.add(name, others, math.fsum(values) / len(values))
        except ValueError as error:
            raise ValueError(f"{name!r} with {', '.join(map(repr, others))} {error}") from None


def tables_of_csv(path: Path) -> tuple[Measured, ...]:
    """Return one table per GPU model; raise InputError with the line and the value if the file is invalid."""
    lines = read_rows(path)
    if not lines:
        raise InputError(str(path), 1, 1, f"is empty; the first line must be {_header(1)}")
    header = lines[0][1]
    n_co_runners = len(header) - len(_FIRST_COLUMNS)
    if n_co_runners < 1 or header not in (_columns(n_co_runners), _columns(n_co_runners, _FORMER_CO_RUNNER)):
        raise InputError(
            str(path), 1, 1, f"the columns {','.join(header)!r} must be {_header(max(n_co_runners, 1))}"
        )
    builders: dict[str, _Builder] = {}
    for line, row in lines[1:]:
        try:
            _add_row(builders, row, len(header), line)
        except ValueError as error:
            raise InputError(str(path), line, 1, str(error)) from None
    for builder in builders.values():
        _check_refusals(path, builder)
    try:
        return tuple(builder.measured() for builder in builders.values())
    except ValueError as error:
        raise InputError(str(path), 0, 0, str(error)) from None


def _check_refusals(path: Path, builder: _Builder) -> None:
    """Check that if one speed of a group is 0, all speeds of the group are 0."""
    names = builder.names
    for (one, others), speed in builder.speeds.items():
        for view in views_of((one, *others)) if speed == 0 else ():
            if builder.speeds.get(view) == 0:
                continue
            co_runners = ", ".join(repr(names[other]) for other in others)
            there = builder.lines.get(view)
            problem = "is missing" if there is None else f"in line {there} is not 0"
            raise InputError(
                str(path),
                builder.lines[one, others],
                1,
                f"{names[one]!r} with {co_runners}: speed 0 means that they cannot run together, "
                f"but the speed of {names[view[0]]!r} {problem}",
            )


def _add_row(builders: dict[str, _Builder], row: Sequence[str], width: int, line: int) -> None:
    if len(row) != width:
        raise ValueError(f"has {len(row)} cells, but the first line has {width}")
    cells = [bare(cell) for cell in row]
    model, name, alone, speed, *co_runners = cells
    others = [other for other in co_runners if other]
    if not model or not name:
        raise ValueError("gpu_model and application must be given")
    for text in (model, name, *others):
        if len(text) > LONGEST_NAME or not text.isprintable():
            raise ValueError(f"the name {text[:40]!r} must have 1 to {LONGEST_NAME} printable characters")
    builder = builders.setdefault(model, _Builder(model))
    if others:
        if alone:
            raise ValueError(f"alone_per_s {alone!r} belongs in the row of {name!r} without co-runners")
        try:
            builder.add(name, others, _number("speed", speed, 1.0), line)
        except ValueError as error:
            raise ValueError(f"{name!r} with {', '.join(map(repr, others))}: {error}") from None
        return
    at = builder.index(name)
    if speed:
        raise ValueError(f"{name!r} without co-runners: speed {speed!r} must be empty")
    if at in builder.alone:
        raise ValueError(f"{name!r} without co-runners occurs twice")
    if alone:
        builder.alone[at] = _number("alone_per_s", alone)
        if builder.alone[at] <= 0:
            raise ValueError(f"{name!r} alone: alone_per_s {alone!r} must be more than 0")


def _number(what: str, text: str, most: float = math.inf) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what} {text!r} must be a number")
    if most < math.inf and not 0 <= found <= most:
        raise ValueError(f"{what} {text!r} must be from 0 to {most:g}, relative to running alone")
    return found


def _columns(n_co_runners: int, prefix: str = _CO_RUNNER) -> list[str]:
    return [*_FIRST_COLUMNS, *(f"{prefix}{place}" for place in range(1, n_co_runners + 1))]


def _header(n_co_runners: int) -> str:
    return ",".join(_columns(n_co_runners))


def write_json(path: Path, table: Measured) -> None:
    """Write a table as JSON; raise OSError if writing fails."""
    decoded = {
        "format": FORMAT,
        "gpu_model": table.gpu_model,
        "applications": {
            name: {"alone_per_s": alone} for name, alone in zip(table.names, table.alone_per_s, strict=True)
        },
        "together": [
            {"applications": [table.names[one] for one in group], "speeds": list(table.together(group))}
            for group in table.groups
        ],
    }
    write_whole(path, json.dumps(decoded, ensure_ascii=False, indent=1) + "\n")


def write_csv(path: Path, tables: Sequence[Measured]) -> None:
    """Write tables as CSV; raise OSError if writing fails."""
    largest = max((len(group) for table in tables for group in table.groups), default=2)
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_columns(largest - 1))
        for table in tables:
            writer.writerows(_rows(table, largest - 1))


def _rows(table: Measured, n_co_runners: int) -> Iterator[list[str]]:
    model, names = armoured(table.gpu_model), [armoured(name) for name in table.names]
    for name, alone in zip(names, table.alone_per_s, strict=True):
        yield [model, name, "" if alone is None else repr(alone), "", *[""] * n_co_runners]
    for group in table.groups:
        for one, others in dict.fromkeys(views_of(group)):
            speed = table.speeds.get((one, others))
            if speed is not None:
                empty = [""] * (n_co_runners - len(others))
                yield [model, names[one], "", repr(speed), *(names[other] for other in others), *empty]
