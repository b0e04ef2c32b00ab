"""Define the types of single values in policy.yaml, such as names, days and amounts with units."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.value_types import (
    DURATION,
    InvalidValueError,
    ValueType,
    pattern,
    require,
    whole_number,
)
from slurm_gpu.policy.language.periods import PERIOD_PATTERN
from slurm_gpu.text.units import format_memory_mib, parse_duration, parse_memory_mib

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}"
MOST_MEMORY_PER_GPU_MIB = 4 * 2**20
DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALL_DAYS = frozenset(range(len(DAY_NAMES)))

_TREE = re.compile(r"[^*?/]+/\*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MOST_GPUS = 1_000_000
_MOST_COUNT = 10**9
# Time limits of more than a year are rejected as mistakes, such as 70000h for 70000 minutes.
_MOST_WALLTIME_S = 366 * 86400
# Amounts of memory too small for Python are rejected as mistakes, such as 64M for 64G.
_LEAST_MEMORY_MIB = 256
_MOST_MEMORY_MIB = 2**30
_MEMORY_UNITS = "KMGT"
_HOURS = re.compile(r"(\d{1,2})(?::(\d\d))?\s*-\s*(\d{1,2})(?::(\d\d))?")
_DAY = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in name) for name in DAY_NAMES)
_DAYS = rf"\s*({_DAY})(\s*-\s*({_DAY}))?\s*"
_WORDS_SCHEMA = {
    "type": "string",
    "allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]*$"}],
}


def _words(what: str, example: str, plural: str = "texts", make: Callable[[str], str] = str) -> ValueType:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InvalidValueError(f"must be {what}; put it in quotes")
        if _CONTROL.search(value):
            raise InvalidValueError("contains a control character")
        return make(" ".join(value.split()))

    return ValueType(what, example, parse, _WORDS_SCHEMA, plural)


def _full_name(example: str, make: Callable[[str], str] = str) -> ValueType:
    """Return the type of full names; names are compared literally, so a pattern would match no job."""

    def parse(value: str) -> str:
        if set(value) & set("*?/"):
            raise InvalidValueError("must be one full name; *, ? and / are not supported, so list each name")
        return make(value)

    schema = _WORDS_SCHEMA | {"not": {"pattern": "[*?/]"}}
    return replace(_words("a name", example, "names", parse), schema=schema)


def _wildcard(example: str) -> ValueType:
    """Return the type of names in groups; `*` matches any characters and `?` matches one character."""

    def parse(value: str) -> str:
        if "/" in value:
            raise InvalidValueError("must be a name without /; * stands for any characters, ? for one")
        return value

    schema = _WORDS_SCHEMA | {"not": {"pattern": "/"}}
    return replace(_words("a name", example, "names", parse), schema=schema)


def _account_wildcard(example: str) -> ValueType:
    """Return the type of accounts in groups: wildcards, or trees such as dept/*."""
    names = _wildcard(example)

    def parse(value: Any) -> Any:
        text = _words("a name", example, "names").parse(value)
        if not _TREE.fullmatch(text) and "/" in text:
            raise InvalidValueError(f"must be a name without /, or {example}/* for it and its sub-accounts")
        return text

    schema = _WORDS_SCHEMA | {"anyOf": [{"not": {"pattern": "/"}}, {"pattern": f"^{_TREE.pattern}$"}]}
    return replace(names, parse=parse, schema=schema)


def _parse_job_name(value: Any) -> str:
    """Check the name and return it unchanged, because job names may contain repeated spaces."""
    _JOB_NAME.parse(value)
    return str(value)


def _identifier(example: str, make: Callable[[str], str] = str) -> ValueType:
    identifier = pattern(example, "letters, digits, _ . - (up to 40)", ID_PATTERN)
    return replace(identifier, parse=lambda value: make(identifier.parse(value)), plural="names")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse_gpus(value: Any) -> int:
    require(_is_number(value) and 0 <= value <= _MOST_GPUS, value)
    if abs(value * 1000 - round(value * 1000)) > 1e-6:
        raise InvalidValueError("must have at most three decimals, such as 0.125")
    return round(float(value) * 1000)


def _parse_gpus_from(value: Any) -> int:
    if isinstance(value, str):
        raise InvalidValueError(
            "must be the number of GPUs from which it applies, such as 8; for jobs with one type of GPUs, "
            "write jobs: {gpu_types: [a100]} in a rule with per: job"
        )
    return _parse_gpus(value)


def memory(most_mib: int = _MOST_MEMORY_MIB) -> ValueType:
    """Return the type of memory amounts in MiB; improbable amounts, often with wrong units, are rejected."""

    def parse(value: Any) -> int:
        if _is_number(value):
            number = value if 0 < value < _MOST_MEMORY_MIB else 64
            raise InvalidValueError(f"has no unit; write {number}G (or {number}M, {number}T)")
        mib = parse_memory_mib(value)
        if mib != 0 and mib < _LEAST_MEMORY_MIB:
            raise InvalidValueError(f"is less than any program needs; did you mean {_other_unit(value, 1)}?")
        if mib > most_mib:
            raise InvalidValueError(
                f"is {format_memory_mib(mib)}, more than any node has; did you mean {_other_unit(value, -1)}?"
            )
        if mib != round(mib):
            raise InvalidValueError(f"must be in whole MiB, as in Slurm, such as {round(mib)}M")
        return round(mib)

    schema = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[KMGTkmgt]([iI]?[bB])?\s*$"}
    return ValueType("an amount of memory", "64G", parse, schema, suffix="_mib")


def _parse_walltime(value: Any) -> int:
    if _is_number(value):
        examples = ", ".join(_with_units(value) or ["4h"])
        raise InvalidValueError(f"has no unit; write {examples} or a Slurm time such as 7-00:00:00")
    seconds = parse_duration(value)
    if seconds < 60 or seconds % 60:
        raise InvalidValueError("must be in whole minutes, as in Slurm, such as 4h")
    if seconds > _MOST_WALLTIME_S:
        raise InvalidValueError(
            f"is {seconds / 86400:.0f} days; the maximum is {_MOST_WALLTIME_S // 86400}d. "
            f"Did you mean {_shorter(value)}? For no limit, leave it out"
        )
    return int(seconds)


def _with_units(number: float) -> list[str]:
    """Return the time limits that a number without a unit may mean; minutes come first, as in --time."""
    found = []
    for unit in "mhd" if number < 1000 else "ms":
        with contextlib.suppress(ValueError):
            _parse_walltime(f"{number}{unit}")
            found.append(f"{number}{unit}")
    return found


def _other_unit(text: str, step: int) -> str:
    """Change the unit to G if `step` is positive (64M → 64G), else to the next smaller one (64G → 64M)."""
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


def _parse_date(value: Any) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d?-\d\d?", value):
        try:
            return dt.datetime.strptime(value, "%Y-%m-%d").date()
        except ValueError:
            raise InvalidValueError("is not in the calendar; write a day such as 2026-12-31") from None
    raise ValueError


def _parse_days(value: Any) -> frozenset[int]:
    parts = value.split(",") if isinstance(value, str) else value
    require(isinstance(parts, list) and parts, parts)
    days: set[int] = set()
    for part in parts:
        ends = part.split("-") if isinstance(part, str) else [part]
        names = [end.strip().lower() if isinstance(end, str) else end for end in ends]
        wrong = [name for name in names if name not in DAY_NAMES]
        if wrong or len(names) > 2:
            hint = did_you_mean(wrong[0], DAY_NAMES) if wrong else "write mon-fri"
            raise InvalidValueError(f"contains {shown(part)}, which is not a day; {hint}")
        first, last = DAY_NAMES.index(names[0]), DAY_NAMES.index(names[-1])
        days.update((first + n) % 7 for n in range((last - first) % 7 + 1))
    return frozenset(days)


def _parse_hours(value: Any) -> tuple[int, int]:
    match = _HOURS.fullmatch(value.strip())
    if match is None:
        raise ValueError
    begin = int(match[1]) * 60 + int(match[2] or 0)
    end = int(match[3]) * 60 + int(match[4] or 0)
    if begin >= 1440 or end > 1440 or int(match[2] or 0) > 59 or int(match[4] or 0) > 59:
        raise InvalidValueError("is not a range of times; hours go from 00:00 to 24:00")
    if end == begin:
        raise InvalidValueError("is empty; leave hours out for the whole day")
    return begin, end if end > begin else end + 1440


TEXT = _words("a text", "")
QOS_PATTERN = _words("a name", "sg-*", "names")
ACCOUNT_PATTERN = _words("a name", "vision", "names")
UNIX_GROUP = _words("a name", "students", "names")
USER_NAME = _full_name("alice")
PARTITION = _full_name("gpu")
USER_WILDCARD = _wildcard("alice")
ACCOUNT_WILDCARD = _account_wildcard("vision")
QOS_WILDCARD = _wildcard("normal")
PARTITION_WILDCARD = _wildcard("gpu")
GPU_TYPE_NAME = _full_name("a100", str.lower)
_JOB_NAME = _words("a name", "jupyter or sys/dashboard/*", "names")
JOB_NAME = replace(_JOB_NAME, parse=_parse_job_name)
ID = _identifier("grad-share")
GROUP_NAME = _words("a group", "grads", "names of groups")
QOS = _identifier("sg-scavenger", str.lower)
_FEATURE = r"[A-Za-z0-9_.:+=-]+"
# Slurm does not document the precedence of & and |, and rejects nested parentheses.
CONSTRAINT = pattern(
    "a100 or a100|h100", "features joined by & or by |", rf"{_FEATURE}((&{_FEATURE})*|(\|{_FEATURE})*)"
)
EXCLUSIVE = ValueType("true", "", lambda value: require(value is True, value), {"const": True})
GPUS = ValueType(
    "a number of GPUs ≥ 0",
    "8 or 0.5",
    _parse_gpus,
    {"type": "number", "minimum": 0, "maximum": _MOST_GPUS},
)
GPUS_FROM = ValueType(
    "the number of GPUs from which it applies", "8", _parse_gpus_from, {"pattern": r"^\d+(\.\d{1,3})?$"}
)
_GPU_TYPE = pattern("a100", "a GPU type as in gres.conf", r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
GPU_TYPE = replace(_GPU_TYPE, parse=lambda value: _GPU_TYPE.parse(value).lower())
NODES = whole_number(1, 100_000, "2")
ONE_PARTITION = pattern("debug", "one partition", r"[^\s,*?/\[\]]+")
PARTITIONS = pattern(
    "debug or debug,gpu", "a partition, or several with commas", r"[^\s,*?/\[\]]+(,[^\s,*?/\[\]]+)*"
)
WHOLE_GPUS = whole_number(1, _MOST_GPUS, "8")
COUNT = whole_number(0, _MOST_COUNT, "8")
CPUS = whole_number(1, _MOST_COUNT, "8")
MEMORY = memory()
MEMORY_PER_GPU = memory(MOST_MEMORY_PER_GPU_MIB)
WALLTIME = ValueType(
    "a duration",
    "4h",
    _parse_walltime,
    {"type": "string", "pattern": DURATION},
    "durations",
    "_s",
)
GPU_HOURS = ValueType(
    "a number of GPU-hours ≥ 0",
    "500",
    lambda value: require(_is_number(value) and 0 <= value <= _MOST_COUNT, value),
    {"type": "number", "minimum": 0, "maximum": _MOST_COUNT},
)
BILLING_HOURS = replace(GPU_HOURS, what="a number of billing-hours ≥ 0", example="5000")
CPU_HOURS = replace(GPU_HOURS, what="a number of CPU-hours ≥ 0", example="5000")
PERIOD = pattern("30d", "day, week, month, quarter, year or 2d to 366d", PERIOD_PATTERN)
DATE = ValueType(
    "a day written as YYYY-MM-DD",
    "2026-12-31",
    _parse_date,
    {"type": "string", "pattern": r"^\d{4}-\d{1,2}-\d{1,2}$"},
)
DAYS = ValueType(
    "days",
    "mon-fri or [sat, sun]",
    _parse_days,
    {
        "anyOf": [
            {"type": "string", "pattern": f"^{_DAYS}(,{_DAYS})*$"},
            {"type": "array", "items": {"type": "string", "pattern": f"^{_DAYS}$"}, "minItems": 1},
        ]
    },
)
HOURS = ValueType(
    "hours",
    '"09-18" or "22:30-06"',
    _parse_hours,
    {"type": "string", "pattern": r"^\s*\d{1,2}(:\d\d)?\s*-\s*\d{1,2}(:\d\d)?\s*$"},
)
