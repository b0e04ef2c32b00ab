"""Collect the detailed samples of one segment: all values except utilisation and memory.

The activity, energy and traffic of a device count for a segment only if no other segment has had the device
since the last sample. Temperature, clocks and throttle reasons count for all segments that share the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from slurm_gpu.node.gpu.reading import Activity, DeviceProperties, Reading
from slurm_gpu.node.measure.counters import CounterSum
from slurm_gpu.node.measure.energy import EnergySum
from slurm_gpu.node.measure.intervals import CoveredMean, Gauge, Interval
from slurm_gpu.node.measure.links import LinkSum
from slurm_gpu.node.measure.statistics import MeanSum
from slurm_gpu.node.measure.timeline import TimelineSum
from slurm_gpu.node.measure.window import WindowRecorder

# Links, named by the prefix of their fields; their series in the timeline have the same names.
LINKS = ("pcie", "nvlink")

# Two readings of the same moment may have slightly different times.
_SAME_S = 0.01

# A sample that covers 10 s does not describe a job that had the device for only the last few ms: because of
# earlier stray processes, the GPU would appear fully used.
_LEAST_ALLOCATED_PART = 0.05

# A GPU that computed for this long must have received kernels over PCIe.
_LEAST_WORK_S = 1.0

_ACTIVITIES = {
    "sm_active_frac": "sm_active",
    "sm_occupancy_frac": "sm_occupancy",
    "tensor_frac": "tensor",
    "dram_frac": "dram",
}
# Gauges with the same name in a reading and in a record; True if it is ignored on a shared device.
_GAUGES = {"mem_util_pct": True, "temp_c": False, "sm_clock_mhz": False}


class DetailCollector:
    """Collects detailed samples, and adds their values to the timeline and window."""

    def __init__(self, facts: DeviceProperties | None, timeline: TimelineSum, window: WindowRecorder) -> None:
        self._timeline, self._window = timeline, window
        self._limit_w = None if facts is None else facts.power_limit_w
        self._clock_max_mhz = None if facts is None else facts.sm_clock_max_mhz
        self._gauges = {name: Gauge() for name in _GAUGES}
        self._processes, self._no_process, self._util = Gauge(), Gauge(), Gauge()
        self._energy = EnergySum(self._limit_w)
        pcie = None if facts is None else facts.pcie_bytes_per_s
        # Traffic measured by the device's counters, and by GPM.
        self._pcie, self._pcie_by_gpm = LinkSum(pcie), LinkSum(pcie)
        self._nvlink = LinkSum(None if facts is None else facts.nvlink_bytes_per_s)
        self._ecc_corrected, self._ecc_uncorrected = CounterSum(), CounterSum()
        self._counters = (self._energy, self._pcie, self._nvlink, self._ecc_corrected, self._ecc_uncorrected)
        self._activities = {name: MeanSum() for name in _ACTIVITIES}
        self._start_s: float | None = None
        self._free_since_s = inf
        self._active_from_s: float | None = None
        self._uses_gpm = False
        self._reasons_before: Sequence[str] | None = None
        self._throttle_s: dict[str, float] | None = None

    def free_since(self, at_s: float) -> None:
        """Set the time from which the device was unallocated until the segment's start."""
        self._free_since_s = at_s

    def see(
        self,
        reading: Reading,
        processes: int | None,
        interval: Interval,
        *,
        alone: bool,
        free_after: bool = True,
    ) -> None:
        """Count a reading that closes the interval.

        `free_after` is true if the device was unallocated from the segment's end to the reading.
        """
        between_s, own_s = interval.between_s, interval.allocated_s if alone else 0.0
        ended = interval.ended
        if processes == 0 and alone and reading.util_pct is not None and reading.util_pct > 0:
            # Some drivers list no processes, for example in virtual machines, although the device computes.
            processes = None
        no_process = None if processes is None else float(processes == 0)
        self._no_process.see(no_process, interval, ended=ended)
        self._util.see(reading.util_pct if alone else None, interval, ended=ended)
        gauges = self._see_throttle(reading.throttle, interval)
        gauges["power_w"] = self._energy.see(reading.energy_mj, reading.power_w, interval, alone=alone)
        gauges["processes"] = self._processes.see(processes, interval, ended=ended)
        for name, gauge in self._gauges.items():
            value = getattr(reading, name) if alone or not _GAUGES[name] else None
            gauges[name] = gauge.see(value, interval, ended=ended)
        self._add_to_timeline("power", gauges["power_w"], self._limit_w)
        self._add_to_timeline("sm_clock", gauges["sm_clock_mhz"], self._clock_max_mhz)
        pcie_rx, pcie_tx = self._pcie.see(reading.pcie_rx_bytes, reading.pcie_tx_bytes, between_s, own_s)
        self._uses_gpm = self._uses_gpm or _prefers_gpm_pcie(reading, frozen=self._pcie.is_frozen)
        if self._uses_gpm:
            pcie_rx = pcie_tx = None
        nvlink_rx, nvlink_tx = self._nvlink.see(
            reading.nvlink_rx_bytes, reading.nvlink_tx_bytes, between_s, own_s
        )
        counted: dict[str, float | None] = {
            "pcie_rx_bytes_per_s": pcie_rx,
            "pcie_tx_bytes_per_s": pcie_tx,
            "nvlink_rx_bytes_per_s": nvlink_rx,
            "nvlink_tx_bytes_per_s": nvlink_tx,
            "ecc_corrected_per_s": self._ecc_corrected.see(reading.ecc_corrected, between_s, own_s),
            "ecc_uncorrected_per_s": self._ecc_uncorrected.see(reading.ecc_uncorrected, between_s, own_s),
        }
        loads = {
            "pcie": self._pcie.load(pcie_rx, pcie_tx),
            "nvlink": self._nvlink.load(nvlink_rx, nvlink_tx),
        }
        self._timeline.add(interval.begin_s, interval.end_s, loads)
        if self._start_s is None or self._active_from_s is None:
            self._start_s = interval.begin_s
            self._active_from_s = min(interval.begin_s, self._free_since_s)
        if not alone:
            self._active_from_s = interval.end_s
        if reading.activity is not None:
            if free_after or not interval.ended:
                self._see_activity(reading.activity, self._start_s, self._active_from_s, interval, counted)
            self._active_from_s = interval.end_s
        self._add_to_window(interval, counted, gauges)

    def _add_to_timeline(self, name: str, covered: CoveredMean | None, whole: float | None) -> None:
        if covered is not None and whole is not None and whole > 0:
            self._timeline.add_one(covered.begin_s, covered.end_s, name, covered.mean / whole)

    def _add_to_window(
        self,
        interval: Interval,
        counted: Mapping[str, float | None],
        gauges: Mapping[str, CoveredMean | None],
    ) -> None:
        """Add the values to the window, each gauge only for the part of the interval that it covers."""
        begin_s, own_s, end_s = interval.begin_s, interval.own_begin_s, interval.end_s
        for from_s, until_s in ((begin_s, min(own_s, end_s)), (max(begin_s, own_s), end_s)):
            values = dict(counted)
            for name, covered in gauges.items():
                values[name] = None if covered is None or covered.begin_s > from_s else covered.mean
            self._window.details(from_s, until_s, values)

    def _see_throttle(
        self, reasons: Sequence[str] | None, interval: Interval
    ) -> dict[str, CoveredMean | None]:
        """Count throttle reasons; a reason that started or ended in the interval counts for half of it."""
        before, self._reasons_before = self._reasons_before, reasons
        if not interval.continues:
            before = None
        if interval.ended and before is not None:
            reasons = before
        begin_s = interval.own_begin_s if before is None else interval.begin_s
        seconds = interval.end_s - begin_s
        if reasons is None or seconds <= 0:
            return {}
        if self._throttle_s is None:
            self._throttle_s = {}
        in_force = dict.fromkeys(self._throttle_s, 0.0)
        for some in (reasons, reasons if before is None else before):
            for name in some:
                in_force[name] = in_force.get(name, 0.0) + 0.5
        for name, part in in_force.items():
            self._throttle_s[name] = self._throttle_s.get(name, 0.0) + part * seconds
        return {
            "throttle." + name: CoveredMean(begin_s, interval.end_s, part, part, part)
            for name, part in in_force.items()
        }

    def _see_activity(
        self,
        activity: Activity,
        start_s: float,
        from_s: float,
        interval: Interval,
        values: dict[str, float | None],
    ) -> None:
        """Count GPM's means over their period, unless the period began before `from_s`.

        Before `from_s`, other jobs contributed to the means. An unallocated device is idle, so activity just
        before or after the segment counts for the segment.
        """
        begin_s = interval.at_s - activity.seconds
        if begin_s < from_s - _SAME_S:
            return
        begin_s = max(begin_s, from_s)
        allocated_from_s = max(begin_s, start_s)
        seconds = interval.end_s - allocated_from_s
        if seconds <= 0:
            return
        allocated_part = seconds / (interval.at_s - begin_s)
        if allocated_part < _LEAST_ALLOCATED_PART:
            return
        for name, attribute in _ACTIVITIES.items():
            value = _concentrated(getattr(activity, attribute), allocated_part)
            if value is not None:
                value = min(1.0, value)
                self._activities[name].add(seconds, value, value, value)
                values[name] = value
        series = {"sm_active": values.get("sm_active_frac"), "tensor": values.get("tensor_frac")}
        rx, tx = self._pcie_by_gpm.add(
            _concentrated(activity.pcie_rx_bytes_per_s, allocated_part),
            _concentrated(activity.pcie_tx_bytes_per_s, allocated_part),
            seconds,
        )
        if self._uses_gpm:
            values |= {"pcie_rx_bytes_per_s": rx, "pcie_tx_bytes_per_s": tx}
            series["pcie"] = self._pcie_by_gpm.load(rx, tx)
        self._timeline.add(allocated_from_s, interval.end_s, series)

    def forget(self) -> None:
        """Treat all counters as reset, because the driver was reloaded or the device was unavailable."""
        for counter in self._counters:
            counter.forget()

    def _has_worked(self) -> bool:
        """Return whether the device computed while only this segment had it."""
        means = (self._util.sum.value(100), self._activities["sm_active_frac"].value())
        return any(mean is not None and mean.seconds * mean.mean >= _LEAST_WORK_S for mean in means)

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of a record."""
        no_process = self._no_process.sum.value()
        throttle_s = self._throttle_s
        pcie = self._pcie_by_gpm if self._uses_gpm else self._pcie
        pcie_rx, pcie_tx = pcie.totals(has_to_move=self._has_worked())
        nvlink_rx, nvlink_tx = self._nvlink.totals()
        return {
            "no_process_s": None if no_process is None else round(no_process.seconds * no_process.mean, 3),
            **{name: gauge.sum.value() for name, gauge in self._gauges.items()},
            **{name: activity.value() for name, activity in self._activities.items()},
            **self._energy.fields(),
            "processes": self._processes.sum.value(),
            "pcie_rx_bytes": pcie_rx,
            "pcie_tx_bytes": pcie_tx,
            "nvlink_rx_bytes": nvlink_rx,
            "nvlink_tx_bytes": nvlink_tx,
            "ecc_corrected": self._ecc_corrected.total(),
            "ecc_uncorrected": self._ecc_uncorrected.total(),
            "throttle_s": None if throttle_s is None else {r: round(s, 3) for r, s in throttle_s.items()},
        }


def _prefers_gpm_pcie(reading: Reading, *, frozen: bool) -> bool:
    """Return whether to use GPM's rates instead of 32-bit counters, which can wrap many times per second.

    GPM's rates are also used if they show traffic while the counters are `frozen`.
    """
    activity, counter = reading.activity, reading.pcie_rx_bytes
    if activity is None or activity.pcie_rx_bytes_per_s is None:
        return False
    return counter is None or counter.bits < 64 or (frozen and activity.pcie_rx_bytes_per_s > 0)


def _concentrated(value: float | None, allocated_part: float) -> float | None:
    """Convert the mean over an interval to the mean over the part in which all the activity took place."""
    return None if value is None else value / allocated_part
