"""Format limits as text, and as JSON with stable keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurm_gpu.policy.language.amounts import GpuLimit, JobAmounts, RuleLimits
from slurm_gpu.policy.language.hour_sums import split_type
from slurm_gpu.policy.language.limits import (
    LIMITS,
    LimitKind,
    LimitUnit,
    LimitValue,
    Scope,
    number_of,
    set_limits,
    steps_of,
)
from slurm_gpu.policy.language.periods import each_text
from slurm_gpu.text.units import format_duration, format_gpus, format_memory_mib

_NONE = JobAmounts()
_COUNTED_JOBS = {
    Scope.JOB: "",
    Scope.TOTAL: " running and pending",
    Scope.PENDING: " pending",
    Scope.RUNNING: " running",
    Scope.PERIOD: "",
}


def limit_texts(limits: RuleLimits, at_least: JobAmounts = _NONE, over: str = "") -> list[str]:
    """Return the text of each limit and minimum, such as "at most 12 GPUs running and pending".

    `over`, such as " per user", is appended to each limit that is an amount.
    """
    return [
        text if kind.measure in (LimitUnit.NAMES, LimitUnit.WALLTIME) else f"{text}{over}"
        for kind, value, bound in _bounds(limits, at_least)
        for _, text in _texts(kind, value, bound)
    ]


def _bounds(limits: RuleLimits, at_least: JobAmounts) -> Iterator[tuple[LimitKind, LimitValue, str]]:
    """Yield each limit and minimum with its value and its bound, such as "at most"."""
    for kind in LIMITS.values():
        most, least = kind.of(limits), kind.of(at_least)
        if most is not None:
            yield kind, most, "exactly" if most == least else "at most"
        if least is not None and least != most:
            yield kind, least, "at least"


def flat_text(limits: RuleLimits, key: str) -> str:
    """Return the text of one limit by its key, as in flat_limits."""
    texts = [pair for kind, value in set_limits(limits) for pair in _texts(kind, value, "at most")]
    return ", ".join(text for of_key, text in texts if of_key == key)


def limits_json(limits: JobAmounts) -> dict[str, Any]:
    """Return the limits by their keys in policy.yaml.

    GPUs are numbers or {type: number}, memory is in MiB (`memory_mib`), walltime in seconds (`walltime_s`),
    gpu_hours a number, {period: hours} or {period: {type: hours}}. A limit that depends on the GPUs of the
    job is a list of {gpus, limit}.
    """
    by_key: dict[str, Any] = {}
    for kind, value in set_limits(limits):
        if isinstance(value, GpuLimit):
            by_key[kind.key] = (
                {gpu_type: mgpu / 1000 for gpu_type, mgpu in value.by_type_mgpu.items()}
                if value.all_mgpu is None
                else value.all_mgpu / 1000
            )
        elif isinstance(value, Mapping):
            by_key[kind.key] = value[None] if None in value else _by_period(value)
        elif kind.measure is LimitUnit.NAMES and isinstance(value, tuple):
            by_key[kind.key] = list(value)
        else:
            key = f"{kind.key}_s" if kind.measure is LimitUnit.WALLTIME else kind.field
            number = number_of(value)
            steps = [{"gpus": step.from_mgpu / 1000, "limit": step.limit} for step in steps_of(value)]
            by_key[key] = steps if number is None else number
    return by_key


def _by_period(value: Mapping[str | None, float]) -> dict[str, Any]:
    """Return the limits on hours as in policy.yaml, by period or by period and GPU type."""
    found: dict[str, Any] = {}
    for part, hours in value.items():
        period, gpu_type = split_type(str(part))
        if gpu_type is None:
            found[period] = hours
        else:
            found.setdefault(period, {})[gpu_type] = hours
    return found


def _texts(kind: LimitKind, value: LimitValue, bound: str) -> Iterator[tuple[str, str]]:
    """Yield the key, as in flat_limits, and the text of each part of a limit."""
    counted_jobs = _COUNTED_JOBS[kind.scope]
    if isinstance(value, GpuLimit):
        if value.all_mgpu is not None:
            yield kind.key, f"{bound} {format_gpus(value.all_mgpu)}{counted_jobs}"
        for gpu_type, mgpu in value.by_type_mgpu.items():
            yield f"{kind.key}:{gpu_type}", f"{bound} {format_gpus(mgpu)} of type {gpu_type}{counted_jobs}"
    elif isinstance(value, Mapping):
        for part, hours in value.items():
            text = f"{bound} {hours:,.10g} {kind.noun(hours)}"
            if part is None:
                yield kind.key, text
                continue
            period, of_type = split_type(part)
            where = "" if of_type is None else f" on {of_type} GPUs"
            yield f"{kind.key}:{part}", f"{text}{where} {each_text(period)}"
    elif kind.measure is LimitUnit.NAMES and isinstance(value, tuple):
        yield kind.key, f"only {kind.what} {', '.join(map(str, value))}"
    elif (number := number_of(value)) is not None:
        yield kind.key, f"{_amount_text(kind, number, bound)}{counted_jobs}"
    else:
        for step in steps_of(value):
            yield kind.key, f"{_amount_text(kind, step.limit, bound)} from {format_gpus(step.from_mgpu)} on"


def _amount_text(kind: LimitKind, value: int, bound: str) -> str:
    if kind.measure is LimitUnit.WALLTIME:
        return f"time limit {bound} {format_duration(value)}"
    amount = f"{format_memory_mib(value)} of" if kind.measure is LimitUnit.MEMORY else f"{value:,}"
    return f"{bound} {amount} {kind.noun(value)}"
