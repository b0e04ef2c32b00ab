"""Format metrics and times for the page."""

from __future__ import annotations

import math
from zoneinfo import ZoneInfo

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.reports.diagnosed.style import GROUP_TONES
from slurm_gpu.reports.page.palette import series_tone
from slurm_gpu.text.cells import moment

TITLES = {
    Metric.UTIL: "Utilisation",
    Metric.SM_ACTIVE: "SMs active",
    Metric.TENSOR: "Tensor pipe",
    Metric.DRAM: "Memory traffic",
    Metric.MEM_USED: "Memory used",
    Metric.POWER: "Power",
    Metric.SM_CLOCK: "SM clock",
    Metric.THROTTLE: "Throttled",
    Metric.PCIE: "PCIe",
    Metric.NVLINK: "NVLink",
    Metric.CPU: "Host CPU",
    Metric.NETWORK: "Host network",
    Metric.INFINIBAND: "InfiniBand",
}
# Metrics in bytes/s; all others are fractions.
BYTES = (Metric.NETWORK, Metric.INFINIBAND)
_OF_SIGNALS = {
    Signal.BUSY.value: Metric.SM_ACTIVE,
    Signal.WORK.value: Metric.TENSOR,
    Signal.CLOCK.value: Metric.SM_CLOCK,
}


def group_tone(group: int) -> str:
    """Return the colour of a group of peers; more than four groups reuse colours."""
    return series_tone(GROUP_TONES[group % len(GROUP_TONES)])


def metric_of(name: str) -> Metric | None:
    """Return the metric that an item of evidence names; None if it is not a GPU metric."""
    if name in _OF_SIGNALS:
        return _OF_SIGNALS[name]
    return Metric(name) if name in Metric._value2member_map_ else None


def shown(metric: Metric, value: float) -> str:
    """Return a value with its unit."""
    if math.isnan(value):
        return "–"
    if metric in BYTES:
        return f"{value / 1e6:,.0f}\u00a0MB/s"
    return f"{100 * value:.0f}\u00a0%"


def clock_time(at_s: float, zone: str) -> str:
    """Return a date and time of day."""
    return moment(at_s, ZoneInfo(zone))
