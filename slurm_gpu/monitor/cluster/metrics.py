"""Define the metrics of squares, and encode values as octets: 255 is a missing value, 0 a measured zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slurm_gpu.wire import LiveDevice

GAP = 255
MOST = 254
# The top of the scale if no driver reports a limit.
_POWER_W = 700.0
_ROUND_W = 50.0


@dataclass(frozen=True, slots=True)
class SquareMetric:
    """A metric that users can select. A value is octet × `step`, and the scale ends at `top`."""

    name: str
    title: str
    unit: str
    top: float
    step: float

    def octet(self, value: float | None) -> int:
        """Encode a value; None is encoded as GAP."""
        if value is None:
            return GAP
        return min(MOST, max(0, int(value / self.step + 0.5)))

    def to_json(self) -> dict[str, Any]:
        """Return the metric's entry in the answer to GET /api/v1/layout."""
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "top": self.top,
            "step": self.step,
        }


STATE = SquareMetric("state", "State", "", 4, 1)
# The values of the metric `state`.
FREE, ALLOCATED, SHARED, OUT_OF_SERVICE, UNWATCHED = range(5)


def metrics_for(power_limits_w: Iterable[float | None]) -> list[SquareMetric]:
    """Return all metrics in display order; the scale of power ends at the highest limit, rounded up."""
    limits = [limit for limit in power_limits_w if limit is not None and limit > 0]
    top_w = math.ceil(max(limits, default=_POWER_W) / _ROUND_W) * _ROUND_W
    return [
        SquareMetric("util", "Utilisation", "%", 100, 1),
        SquareMetric("mem", "Memory used", "%", 100, 1),
        SquareMetric("power", "Power", "W", top_w, max(1, math.ceil(top_w / MOST))),
        SquareMetric("temp", "Temperature", "°C", 100, 1),
        SquareMetric("clock", "SM clock", "%", 100, 1),
        SquareMetric("p25_util", "Utilisation since the job began (p25)", "%", 100, 1),
        SquareMetric("p95_util", "Utilisation since the job began (p95)", "%", 100, 1),
        SquareMetric("p25_mem", "Memory since the job began (p25)", "%", 100, 1),
        SquareMetric("p95_mem", "Memory since the job began (p95)", "%", 100, 1),
        STATE,
    ]


def _memory_pct(value: LiveDevice) -> float | None:
    return None if value.mem_used_frac is None else 100 * value.mem_used_frac


# Metrics that show the last value of a device. `clock` is not included, because it is relative to a maximum.
LIVE: dict[str, Callable[[LiveDevice], float | None]] = {
    "util": lambda value: value.util_pct,
    "mem": _memory_pct,
    "power": lambda value: value.power_w,
    "temp": lambda value: value.temp_c,
}
