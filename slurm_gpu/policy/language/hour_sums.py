"""Name the sums of resource-hours that slurm-gpuctld publishes for limits by period, such as `gpu_h_week`.

The key of a sum is its unit and its period. The period `committed` stands for what pending and running jobs
may still use, and `week_before` for the previous week. The key of a sum over GPUs of one type ends with the
type: the sum `gpu_h_week:a100` has the unit `gpu_h:a100`.
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


def split_type(name: str) -> tuple[str, str | None]:
    """Return a period, unit or key without its GPU type, and the type: ("week", "a100") for `week:a100`."""
    name, _, gpu_type = name.partition(":")
    return name, gpu_type or None


def sum_key(limit: str, part: str, *, suffix: str = "") -> str:
    """Return the key of the sum for a limit, such as `gpu_hours`, in a period, such as `week` or `week:a100`.

    A suffix selects another period: `_before` gives `week_before`.
    """
    period, gpu_type = split_type(part)
    return _with_type(f"{UNITS[limit]}_{period}{suffix}", gpu_type)


def committed_key(limit: str, part: str) -> str:
    """Return the key of a limit's sum over pending and running jobs."""
    return sum_key(limit, _with_type(COMMITTED, split_type(part)[1]))


def parts_of(key: str) -> tuple[str, str]:
    """Return the unit and the period of a sum; raise ValueError if the key is not that of a sum."""
    name, gpu_type = split_type(key)
    for unit in UNITS.values():
        if name.startswith(f"{unit}_"):
            return _with_type(unit, gpu_type), name.removeprefix(f"{unit}_")
    raise ValueError(key)


def is_sum(key: str) -> bool:
    """Return whether a key in the snapshot is that of a sum of resource-hours."""
    return key.startswith(tuple(f"{unit}_" for unit in UNITS.values()))


def named(keys: Iterable[str]) -> str:
    """Return the names of the units of these sums, such as "GPU-hours and CPU-hours"."""
    units = {split_type(parts_of(key)[0])[0] for key in keys}
    *others, last = [name for unit, name in NAMES.items() if unit in units]
    return f"{', '.join(others)} and {last}" if others else last


def sums_of(limits: Iterable[str], *, hard: bool = False, carry_over: bool = False) -> Iterator[str]:
    """Yield the keys of the sums that a rule with these limits (as in flat_limits) requires."""
    for key in limits:
        base, _, part = key.partition(":")
        if base in UNITS and part:
            yield sum_key(base, part)
            if carry_over and split_type(part)[0] in CALENDAR:
                yield sum_key(base, part, suffix=BEFORE)
            if hard:
                yield committed_key(base, part)


def _with_type(name: str, gpu_type: str | None) -> str:
    return name if gpu_type is None else f"{name}:{gpu_type}"
