"""Format limits as text, and as JSON with stable keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurm_gpu.policy.language.limits import LimitKind, LimitUnit, LimitValue, Scope, set_limits
from slurm_gpu.policy.language.model import GpuLimit, RuleLimits, WalltimeStep
from slurm_gpu.text.units import format_duration, format_gpus, format_memory_mib

_COUNTED_JOBS = {
    Scope.JOB: "",
    Scope.TOTAL: " running and pending",
    Scope.RUNNING: " running",
    Scope.PERIOD: "",
}


def limit_texts(limits: RuleLimits, over: str = "") -> list[str]:
    """Return the text of each limit that is set, such as "at most 12 GPUs running and pending".

    `over`, such as " per user", is appended to each limit that is an amount.
    """
    return [
        text if kind.measure in (LimitUnit.NAMES, LimitUnit.WALLTIME) else f"{text}{over}"
        for kind, value in set_limits(limits)
        for _, text in _texts(kind, value)
    ]


def flat_text(limits: RuleLimits, key: str) -> str:
    """Return the text of one limit by its key, as in flat_limits."""
    texts = [pair for kind, value in set_limits(limits) for pair in _texts(kind, value)]
    return ", ".join(text for of_key, text in texts if of_key == key)


def limits_json(limits: RuleLimits) -> dict[str, Any]:
    """Return the limits by their keys in policy.yaml.

    GPUs are numbers or {type: number}, memory is in MiB (`memory_mib`), walltime in seconds
    (`walltime_s`) or a list of {gpus, s}, gpu_hours {period: hours}.
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
            by_key[kind.key] = {str(period): hours for period, hours in value.items()}
        elif isinstance(value, tuple) and kind.measure is LimitUnit.WALLTIME:
            by_key[f"{kind.key}_s"] = _steps_json(_steps(value))
        elif isinstance(value, tuple):
            by_key[kind.key] = list(value)
        else:
            by_key[kind.field] = value
    return by_key


def _steps_json(steps: list[WalltimeStep]) -> Any:
    if _plain(steps):
        return steps[0].limit_s
    return [{"gpus": step.from_mgpu / 1000, "s": step.limit_s} for step in steps]


def _texts(kind: LimitKind, value: LimitValue) -> Iterator[tuple[str, str]]:
    """Yield the key, as in flat_limits, and the text of each part of a limit."""
    counted_jobs = _COUNTED_JOBS[kind.scope]
    if isinstance(value, GpuLimit):
        if value.all_mgpu is not None:
            yield kind.key, f"at most {format_gpus(value.all_mgpu)}{counted_jobs}"
        for gpu_type, mgpu in value.by_type_mgpu.items():
            yield f"{kind.key}:{gpu_type}", f"at most {format_gpus(mgpu)} of type {gpu_type}{counted_jobs}"
    elif isinstance(value, Mapping):
        for period, hours in value.items():
            yield f"{kind.key}:{period}", f"at most {hours:g} {kind.noun(hours)} a {period}"
    elif isinstance(value, tuple) and kind.measure is LimitUnit.WALLTIME:
        yield from ((kind.key, text) for text in _walltime_texts(_steps(value)))
    elif isinstance(value, tuple):
        yield kind.key, f"only {kind.what} {', '.join(map(str, value))}"
    elif isinstance(value, int):
        amount = f"{format_memory_mib(value)} of" if kind.measure is LimitUnit.MEMORY else str(value)
        yield kind.key, f"at most {amount} {kind.noun(value)}{counted_jobs}"


def _walltime_texts(steps: list[WalltimeStep]) -> Iterator[str]:
    for step in steps:
        limit = f"time limit at most {format_duration(step.limit_s)}"
        yield limit if _plain(steps) else f"{limit} from {format_gpus(step.from_mgpu)} on"


def _steps(value: tuple[Any, ...]) -> list[WalltimeStep]:
    return [step for step in value if isinstance(step, WalltimeStep)]


def _plain(steps: list[WalltimeStep]) -> bool:
    return len(steps) == 1 and steps[0].from_mgpu == 0
