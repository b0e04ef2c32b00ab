"""Name the sums of resource-hours that slurm-gpuctld publishes for limits by period, such as `gpu_h_week`.

The key of a sum is its unit and its period. The period `committed` stands for what pending and running jobs
may still use, and `week_before` for the previous week.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slurm_gpu.policy.language.periods import BEFORE, CALENDAR

# Limit → the unit of its sums.
UNITS: Mapping[str, str] = {
    "gpu_hours": "gpu_h",
    "cpu_hours": "cpu_h",
    "billing_hours": "billing_h",
}
NAMES: Mapping[str, str] = {
    "gpu_h": "GPU-hours",
    "cpu_h": "CPU-hours",
    "billing_h": "billing-hours",
}
COMMITTED = "committed"


def sum_key(limit: str, period: str) -> str:
    """Return the key of the sum to which a limit, such as `gpu_hours`, applies in a period."""
    return f"{UNITS[limit]}_{period}"


def parts_of(key: str) -> tuple[str, str]:
    """Return the unit and the period of a sum; raise ValueError if the key is not that of a sum."""
    for unit in UNITS.values():
        if key.startswith(f"{unit}_"):
            return unit, key.removeprefix(f"{unit}_")
    raise ValueError(key)


def is_sum(key: str) -> bool:
    """Return whether a key in the snapshot is that of a sum of resource-hours."""
    return key.startswith(tuple(f"{unit}_" for unit in UNITS.values()))


def named(keys: Iterable[str]) -> str:
    """Return the names of the units of these sums, such as "GPU-hours and CPU-hours"."""
    units = {parts_of(key)[0] for key in keys}
    *others, last = [name for unit, name in NAMES.items() if unit in units]
    return f"{', '.join(others)} and {last}" if others else last


def sums_of(limits: Iterable[str], *, hard: bool = False, carry_over: bool = False) -> Iterator[str]:
    """Yield the keys of the sums that a rule with these limits (as in flat_limits) requires."""
    for key in limits:
        base, _, period = key.partition(":")
        if base in UNITS and period:
            yield sum_key(base, period)
            if carry_over and period in CALENDAR:
                yield sum_key(base, f"{period}{BEFORE}")
            if hard:
                yield sum_key(base, COMMITTED)
