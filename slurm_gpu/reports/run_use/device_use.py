"""Compute the GPU use of a run on one device from the records of its segments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.steady_clock import spans
from slurm_gpu.wire import (
    HOST_CLUSTER,
    Mean,
    Record,
    Total,
    histogram_mean,
    histogram_quantile,
    merge_histograms,
    merge_means,
    merge_totals,
)
from slurm_gpu.wire.answers.runs import Run

_FRACTIONS = ("sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac")
_COUNTERS = (
    *("pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes"),
    *("ecc_corrected", "ecc_uncorrected"),
)
_IDLE_PCT = 1.0
"""A GPU below this mean utilisation counts as unused."""

_JUDGED_FROM_S = 60.0
"""GPUs allocated for less time are not judged: the run may have failed before it could use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """The use of one GPU on one node by a run; None marks a gap.

    Percentiles are taken over time, and fractions are means. `power_s`, `energy_s`, `pcie_s` and `nvlink_s`
    are the seconds for which each quantity was measured; these quantities are not measured while jobs share
    the GPU.
    """

    node: str
    device: str
    granted_mgpu: int | None
    allocated_s: float
    sampled_s: float
    no_process_s: float | None
    suspended_s: float
    util_mean_pct: float | None
    util_p5_pct: int | None
    util_p50_pct: int | None
    util_p95_pct: int | None
    mem_mean_pct: float | None
    mem_mean_mib: float | None
    mem_max_mib: float | None
    power_mean_w: float | None
    power_max_w: float | None
    power_s: float | None
    energy_j: float | None
    energy_s: float | None
    energy_sampled_s: float | None = None
    sm_active_frac: float | None = None
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    mem_util_pct: float | None = None
    temp_max_c: float | None = None
    sm_clock_mean_mhz: float | None = None
    processes_max: float | None = None
    pcie_rx_bytes: float | None = None
    pcie_tx_bytes: float | None = None
    pcie_s: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    nvlink_s: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    throttle_s: Mapping[str, float] | None = None

    @property
    def coverage(self) -> float | None:
        """Return the fraction of the allocated time, excluding suspensions, that was sampled."""
        runs_s = self.allocated_s - self.suspended_s
        return min(1.0, self.sampled_s / runs_s) if runs_s > 0 else None

    def stands_for_all(self, seconds: float | None, min_coverage: float) -> bool:
        """Return whether a measurement of `seconds` represents the whole allocated time."""
        return seconds is not None and seconds > 0 and seconds >= min_coverage * self.allocated_s

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def device_uses(records: Sequence[Record]) -> list[DeviceUse]:
    """Return one entry per node and GPU, sorted; count only one of two overlapping segments of a GPU."""
    kept, _ = resolve_double_watches(records)
    by_device: dict[tuple[str, str], list[Record]] = {}
    for record in kept:
        by_device.setdefault((record.node, record.device), []).append(record)
    return [_merged(node, device, parts) for (node, device), parts in sorted(by_device.items())]


def idle_advice(run: Run, uses: Sequence[DeviceUse], min_coverage: float) -> str | None:
    """Return advice on allocated but unused GPUs; None if all were used or too little was measured.

    GPUs that were allocated for less than a minute are not judged.
    """
    if run.end_s is None or run.coverage is None or run.coverage < min_coverage:
        return None
    judged = [
        use
        for use in uses
        if use.allocated_s >= _JUDGED_FROM_S and use.coverage is not None and use.coverage >= min_coverage
    ]
    idle = [use for use in judged if use.util_mean_pct is not None and use.util_mean_pct < _IDLE_PCT]
    if not idle:
        return None
    if len(idle) == len(uses):
        what = "The GPU of this run was" if len(uses) == 1 else f"All {len(uses)} GPUs of this run were"
        advice = "submit such work without --gpus, or check that the code uses CUDA."
        return f"{what} allocated but not used; {advice}"
    return (
        f"{len(idle)} of {len(uses)} GPUs {'was' if len(idle) == 1 else 'were'} allocated but not used; "
        f"the run needed only {len(uses) - len(idle)}: --gpus={len(uses) - len(idle)}."
    )


def _merged(node: str, device: str, parts: Sequence[Record]) -> DeviceUse:
    histogram = merge_histograms(part.util_hist_ms for part in parts)
    used_mib = _measured(merge_means(part.mem_used_mib for part in parts))
    used_frac = _measured(merge_means(part.mem_used_frac for part in parts))
    power = _measured(merge_means(part.power_w for part in parts))
    means = {
        name: _measured(merge_means(getattr(part, name) for part in parts))
        for name in (*_FRACTIONS, "mem_util_pct", "temp_c", "sm_clock_mhz", "processes")
    }
    totals = {name: merge_totals(getattr(part, name) for part in parts) for name in ("energy_j", *_COUNTERS)}
    energy = totals["energy_j"]
    grants = [part.granted_mgpu for part in parts if part.granted_mgpu is not None]
    sampled = [part.energy_sampled_s for part in parts if part.energy_sampled_s is not None]
    bare = [part.no_process_s for part in parts if part.no_process_s is not None]
    quantiles: Mapping[float, int | None] = {
        q: None if histogram is None else histogram_quantile(histogram, q) for q in (0.05, 0.5, 0.95)
    }
    return DeviceUse(
        node=node,
        device=device,
        granted_mgpu=grants[-1] if grants else None,
        allocated_s=_allocated_s(parts),
        sampled_s=math.fsum(part.sampled_s for part in parts),
        no_process_s=math.fsum(bare) if bare else None,
        suspended_s=math.fsum(part.suspended_s for part in parts if part.suspended_s is not None),
        util_mean_pct=None if histogram is None else histogram_mean(histogram),
        util_p5_pct=quantiles[0.05],
        util_p50_pct=quantiles[0.5],
        util_p95_pct=quantiles[0.95],
        mem_mean_pct=None if used_frac is None else 100 * used_frac.mean,
        mem_mean_mib=None if used_mib is None else used_mib.mean,
        mem_max_mib=None if used_mib is None else used_mib.max,
        power_mean_w=None if power is None else power.mean,
        power_max_w=None if power is None else power.max,
        power_s=None if power is None else power.seconds,
        energy_j=None if energy is None else energy.total,
        energy_s=None if energy is None else energy.seconds,
        energy_sampled_s=math.fsum(sampled) if sampled else None,
        mem_util_pct=_mean(means["mem_util_pct"]),
        temp_max_c=_most(means["temp_c"]),
        sm_clock_mean_mhz=_mean(means["sm_clock_mhz"]),
        processes_max=_most(means["processes"]),
        pcie_s=_seconds(totals["pcie_rx_bytes"]),
        nvlink_s=_seconds(totals["nvlink_rx_bytes"]),
        throttle_s=_sum_by_reason([part.throttle_s for part in parts if part.throttle_s is not None]),
        **{name: _mean(means[name]) for name in _FRACTIONS},
        **{name: _total(totals[name]) for name in _COUNTERS},
    )


def _allocated_s(parts: Sequence[Record]) -> float:
    """Return the time for which the GPU was allocated, including gaps while slurm-gpud was down.

    On hosts without Slurm, such gaps do not count, since a run has no GPUs between two segments.
    """
    allocated_s = math.fsum(part.allocated_s for part in parts)
    if len(parts) < 2 or parts[0].cluster.startswith(HOST_CLUSTER):
        return allocated_s
    when = spans(parts)
    return max(allocated_s, max(span.end_s for span in when) - min(span.begin_s for span in when))


def _mean(mean: Mean | None) -> float | None:
    return None if mean is None else mean.mean


def _most(mean: Mean | None) -> float | None:
    return None if mean is None else mean.max


def _total(total: Total | None) -> float | None:
    """Return the total; None if nothing was measured."""
    return None if total is None or total.seconds == 0 else total.total


def _seconds(total: Total | None) -> float | None:
    return None if total is None else total.seconds


def _sum_by_reason(parts: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    if not parts:
        return None
    reasons = sorted({reason for part in parts for reason in part})
    return {reason: math.fsum(part.get(reason, 0.0) for part in parts) for reason in reasons}


def _measured(mean: Mean | None) -> Mean | None:
    """Return the mean; None if nothing was measured."""
    return None if mean is None or mean.seconds == 0 else mean
