"""Show durations, which tables and charts contain in hours, in the units that people use."""

from __future__ import annotations

import math

from slurm_gpu.text.units import format_duration

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Round durations in seconds, which are the steps of linear axes and the ticks of logarithmic ones.
_ROUND_S = (
    *(1, 2, 5, 10, 20, 30),
    *(number * _MINUTE for number in (1, 2, 5, 10, 20, 30)),
    *(number * _HOUR for number in (1, 2, 4, 6, 12)),
    *(digit * 10**power * _DAY for power in range(5) for digit in (1, 2, 5)),
)
ROUND_H = tuple(seconds / _HOUR for seconds in _ROUND_S)


def duration_tick(hours: float) -> str:
    """Return the exact label of a tick: "0", "30s", "2h" or "1d"."""
    return format_duration(round(hours * _HOUR)) if hours else "0"


def duration_ticks(least_h: float, most_h: float, about: int) -> list[float]:
    """Return round durations in hours at equal steps that cover the range, at most about `about` of them."""
    raw = (most_h - least_h) / max(1, about)
    step = next((step for step in ROUND_H if step >= raw * (1 - 1e-9)), raw)
    first, last = math.floor(least_h / step + 1e-9), math.ceil(most_h / step - 1e-9)
    return [k * step for k in range(first, max(last, first + 1) + 1)]
