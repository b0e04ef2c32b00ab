"""Checks the single values of policy.yaml: names, days, amounts with their units."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.config.checker import YamlCheck, did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.text.units import format_duration, format_memory_mib, parse_memory_mib

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

MOST_GPUS = 1_000_000
MOST_COUNT = 10**9
MOST_WALLTIME_S = 366 * 86400
"""Nobody means a job of more than a year: 70000h was to be minutes, or a slip."""
LEAST_MEMORY_MIB = 256
"""Less than a Python needs: 64M was to be 64G."""
MOST_MEMORY_MIB = 2**30
MOST_MEMORY_PER_GPU_MIB = 4 * 2**20

_MEMORY_UNITS = "KMGT"
_E = TypeVar("_E", bound=StrEnum)


class ValueCheck(YamlCheck):
    """The values from which a policy is made; each method notes what is wrong and goes on with a stand-in."""

    def table(self, location: Location, value: Any, known: Collection[str]) -> dict[str, Any]:
        """A mapping with these keys."""
        return self.mapping(location, value, known, name_of(location) or "the policy")

    def require(self, location: Location, value: Any, keys: tuple[str, ...]) -> None:
        """Note which of the keys a mapping lacks."""
        if not isinstance(value, dict):
            return
        missing = [key for key in keys if key not in value]
        if missing:
            self.fail(location, f"{name_of(location)} lacks {', '.join(missing)}")

    def text(self, location: Location, value: Any) -> str:
        """A text, in one line."""
        if not isinstance(value, str) or not value.strip():
            self.fail(location, f"{name_of(location)}: {shown(value)} must be a text; put it in quotes")
        elif CONTROL.search(value):
            self.fail(location, f"{name_of(location)}: {shown(value)} holds a control character")
        else:
            return " ".join(value.split())
        return ""

    def path(self, location: Location, value: Any, example: str) -> Path | None:
        """The whole path of a file, which need not be there."""
        if isinstance(value, str) and value.startswith("/") and not CONTROL.search(value):
            return Path(value)
        self.fail(
            location,
            f"{name_of(location)}: {shown(value)} must be the whole path of a file, such as {example}",
        )
        return None

    def choice(self, location: Location, value: Any, kind: type[_E]) -> _E:
        """One of a few words."""
        allowed = [str(member) for member in kind]
        if isinstance(value, str) and value in allowed:
            return kind(value)
        hint = did_you_mean(value, allowed)
        self.fail(location, f"{name_of(location)}: {shown(value)} is not possible; {hint}")
        return next(iter(kind))

    def names(self, location: Location, value: Any, example: str = "[alice, bob]") -> tuple[str, ...]:
        """A list of one name or more."""
        if not isinstance(value, list) or not value:
            self.fail(
                location, f"{name_of(location)}: {shown(value)} must be a list of names, such as {example}"
            )
            return ()
        names = []
        for index, item in enumerate(value):
            if isinstance(item, str) and item.strip() and not CONTROL.search(item):
                names.append(item)
            else:
                self.fail(
                    (*location, index), f"{name_of(location)}: {shown(item)} must be a name; put it in quotes"
                )
        return tuple(names)

    def date(self, location: Location, value: Any) -> dt.date:
        """A day, in quotes or not; the last of all where it is none."""
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d?-\d\d?", value):
            try:
                return dt.datetime.strptime(value, "%Y-%m-%d").date()
            except ValueError:
                problem = f"{value} is not in the calendar; write a day as 2026-12-31"
        else:
            problem = f"{shown(value)} must be a day written as 2026-12-31"
        self.fail(location, f"{name_of(location)}: {problem}")
        return dt.date.max

    def mgpu(self, location: Location, value: Any) -> int | None:
        """GPUs, as thousandths."""
        name = name_of(location)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_GPUS:
            self.fail(
                location, f"{name}: {shown(value)} must be a number of GPUs from 0 up, such as 8 or 0.5"
            )
            return None
        if abs(value * 1000 - round(value * 1000)) > 1e-6:
            self.fail(location, f"{name}: {value!r} must have at most three decimals, such as 0.125")
            return None
        return round(value * 1000)

    def count(self, location: Location, value: Any, example: str = "200") -> int | None:
        """A whole number."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNT:
            self.fail(
                location,
                f"{name_of(location)}: {shown(value)} must be a whole number from 0 up, such as {example}",
            )
            return None
        return value

    def memory(self, location: Location, value: Any, most_mib: int = MOST_MEMORY_MIB) -> int | None:
        """Memory with its unit, as MiB; amounts that nobody can mean are taken for slips of the unit."""
        name = name_of(location)
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = value if 0 < value < MOST_MEMORY_MIB else 64
            self.fail(
                location, f"{name}: {value!r}: it has no unit; write {number}G (or {number}M, {number}T)"
            )
            return None
        try:
            mib = parse_memory_mib(value)
        except (ValueError, AttributeError, TypeError):
            self.fail(location, f"{name}: {shown(value)} is not an amount of memory; write one such as 64G")
            return None
        if mib != 0 and mib < LEAST_MEMORY_MIB:
            self.fail(
                location,
                f"{name}: {value} is less than any program needs; did you mean {_other_unit(value, 1)}?",
            )
        elif mib > most_mib:
            self.fail(
                location,
                f"{name}: {value} is {format_memory_mib(mib)}, more than there is; "
                f"did you mean {_other_unit(value, -1)}?",
            )
        elif mib != round(mib):
            self.fail(
                location, f"{name}: {value!r} must be whole MiB, as Slurm counts, such as {round(mib)}M"
            )
        else:
            return round(mib)
        return None

    def duration(self, location: Location, value: Any, name: str) -> int | None:
        """A time limit in whole minutes, as seconds; `name` is what messages call it."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = value if 0 < value < 1000 else 4
            examples = f"{number}h or {number}d"
            if 1000 <= value <= MOST_WALLTIME_S:
                examples = format_duration(value)
            self.fail(
                location,
                f"{name}: {value}: it has no unit; write {examples}, or a Slurm time such as 7-00:00:00",
            )
            return None
        if self.is_ambiguous(location, value):
            hours, minutes = value.split(":")
            clock = f"{hours}:{minutes}:00"
            self.fail(
                location,
                f"{name}: {value} may be hours or minutes; "
                f"write {clock if int(minutes) else f'{hours}h or {clock}'}",
            )
            return None
        seconds = self.seconds(location, value)
        if seconds is None:
            self.fail(
                location, f"{name}: {shown(value)} is not a duration; write one such as 4h, 7d or 7-00:00:00"
            )
        elif seconds < 60 or seconds % 60:
            self.fail(location, f"{name}: {value!r} must be whole minutes, as Slurm counts, such as 4h")
        elif seconds > MOST_WALLTIME_S:
            days = seconds / 86400
            self.fail(
                location,
                f"{name}: {value} is {days:.0f} days; the most is {MOST_WALLTIME_S // 86400}d. "
                f"Did you mean {_shorter(value)}? Without a limit, leave it out",
            )
        else:
            return int(seconds)
        return None


def name_of(location: Location) -> str:
    """A place for people: rules 2 limits → "limits", rules 2 → "rule 3"."""
    if not location:
        return ""
    if isinstance(location[-1], int) and len(location) > 1:
        return f"{str(location[-2]).removesuffix('s')} {location[-1] + 1}"
    return str(location[-1])


def _other_unit(text: str, step: int) -> str:
    """The same number in the next larger or smaller unit that makes sense: 64M → 64G."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z])[iBb]*\s*", text)
    if match is None:
        return "64G"
    number, unit = match[1], match[2].upper()
    if step > 0:
        return f"{number}G"
    return f"{number}{_MEMORY_UNITS[max(_MEMORY_UNITS.index(unit) + step, 1)]}"


def _shorter(text: str) -> str:
    match = re.fullmatch(r"\s*([\d.]+)\s*([hdw])\s*", text)
    if match is None:
        return "7d"
    return f"{match[1]}{'m' if match[2] == 'h' else 'h'}"
