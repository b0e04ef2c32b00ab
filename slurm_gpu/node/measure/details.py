"""What the detailed looks at a device tell of one segment: all but utilization and memory.

What the device does, draws or moves is a segment's own where nobody else held the device since the look
before; on a shared one it belongs to nobody. Temperature, clocks and what holds them down are the conditions
under which everyone on it works.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu.node.gpu.reading import Activity, Facts, Reading
from slurm_gpu.node.measure.counters import CounterSum
from slurm_gpu.node.measure.intervals import Gauge, Interval
from slurm_gpu.node.measure.statistics import MeanSum
from slurm_gpu.node.measure.timeline import TimelineSum
from slurm_gpu.node.measure.window import Window

# What is told of a link or a board may be exceeded for a moment, or leaves out some of what is counted.
_SLACK = 1.5

# Of two readings at one moment, one may come a little later.
_SAME_S = 0.01

# Of a sample of 10 s in which a job held the device for its last few ms, nothing can be told of these: what
# stray processes did before would pass for a full GPU.
_LEAST_HELD_PART = 0.05

_ACTIVITIES = {
    "sm_active_frac": "sm_active",
    "sm_occupancy_frac": "sm_occupancy",
    "tensor_frac": "tensor",
    "dram_frac": "dram",
}


class Details:
    """Collects from detailed looks; also fills the series of timeline and window that they tell."""

    def __init__(self, facts: Facts | None, timeline: TimelineSum, window: Window) -> None:
        self._timeline, self._window = timeline, window
        power = None if facts is None else facts.power_limit_w
        pcie = None if facts is None else facts.pcie_bytes_per_s
        nvlink = None if facts is None else facts.nvlink_bytes_per_s
        self._limit_w, self._pcie_per_s, self._nvlink_per_s = power, pcie, nvlink
        self._clock_max_mhz = None if facts is None else facts.sm_clock_max_mhz
        self._mem_util, self._temp, self._clock = Gauge(), Gauge(), Gauge()
        self._processes, self._no_process = Gauge(), Gauge()
        self._watts_before: float | None = None
        self._power = MeanSum()
        self._energy_mj = CounterSum(None if power is None else 1000 * _SLACK * power)
        self._pcie_rx, self._pcie_tx = CounterSum(_most(pcie)), CounterSum(_most(pcie))
        self._nvlink_rx, self._nvlink_tx = CounterSum(_most(nvlink)), CounterSum(_most(nvlink))
        self._ecc_corrected, self._ecc_uncorrected = CounterSum(), CounterSum()
        self._counters = (
            self._energy_mj,
            self._pcie_rx,
            self._pcie_tx,
            self._nvlink_rx,
            self._nvlink_tx,
            self._ecc_corrected,
            self._ecc_uncorrected,
        )
        self._activities = {name: MeanSum() for name in _ACTIVITIES}
        self._start_s: float | None = None
        self._free_since_s = math.inf
        self._active_from_s: float | None = None
        self._pcie_by_gpm = False
        self._reasons_before: Sequence[str] | None = None
        self._throttle_s: dict[str, float] | None = None

    def free_since(self, at_s: float) -> None:
        """From then to the segment's start nobody held the device."""
        self._free_since_s = at_s

    def see(
        self,
        reading: Reading,
        processes: int | None,
        interval: Interval,
        gap_s: float,
        *,
        alone: bool,
        free_after: bool = True,
    ) -> None:
        """Count a reading that closes the interval; longer than `gap_s`, it is a gap to all but counters.

        `free_after` says that nobody held the device between the segment's end and the reading.
        """
        between_s, held_s = interval.between_s, interval.held_s
        seconds = held_s if between_s <= gap_s else 0.0
        own_s = held_s if alone else 0.0
        ended = interval.ended
        clock_mhz = self._clock.see(reading.sm_clock_mhz, seconds, ended=ended)
        watts = self._see_power(reading, interval.between_s, seconds, held_s, alone=alone)
        pcie_rx = pcie_tx = None
        self._pcie_by_gpm = self._pcie_by_gpm or _gpm_tells_pcie(reading)
        if not self._pcie_by_gpm:
            pcie_rx = self._pcie_rx.see(reading.pcie_rx_bytes, between_s, own_s)
            pcie_tx = self._pcie_tx.see(reading.pcie_tx_bytes, between_s, own_s)
        nvlink_rx = self._nvlink_rx.see(reading.nvlink_rx_bytes, between_s, own_s)
        nvlink_tx = self._nvlink_tx.see(reading.nvlink_tx_bytes, between_s, own_s)
        values: dict[str, float | None] = {
            "mem_util_pct": self._mem_util.see(reading.mem_util_pct if alone else None, seconds, ended=ended),
            "power_w": watts,
            "temp_c": self._temp.see(reading.temp_c, seconds, ended=ended),
            "sm_clock_mhz": clock_mhz,
            "processes": self._processes.see(processes, seconds, ended=ended),
            "pcie_rx_bytes_per_s": pcie_rx,
            "pcie_tx_bytes_per_s": pcie_tx,
            "nvlink_rx_bytes_per_s": nvlink_rx,
            "nvlink_tx_bytes_per_s": nvlink_tx,
            "ecc_corrected_per_s": self._ecc_corrected.see(reading.ecc_corrected, between_s, own_s),
            "ecc_uncorrected_per_s": self._ecc_uncorrected.see(reading.ecc_uncorrected, between_s, own_s),
        }
        self._no_process.see(None if processes is None else float(processes == 0), seconds, ended=ended)
        self._see_throttle(reading.throttle if not ended else self._reasons_before, seconds, values)
        self._timeline.add(
            interval.begin_s,
            interval.end_s,
            {
                "pcie": _of_both(pcie_rx, pcie_tx, self._pcie_per_s),
                "nvlink": _of_both(nvlink_rx, nvlink_tx, self._nvlink_per_s),
                "power": _part(watts, self._limit_w),
                "sm_clock": _part(clock_mhz, self._clock_max_mhz),
            },
        )
        if self._start_s is None or self._active_from_s is None:
            self._start_s = interval.begin_s
            self._active_from_s = min(interval.begin_s, self._free_since_s)
        if not alone:
            self._active_from_s = interval.end_s
        if reading.activity is not None:
            if free_after or not interval.ended:
                self._see_activity(reading.activity, self._start_s, self._active_from_s, interval, values)
            self._active_from_s = interval.end_s
        self._window.details(interval.begin_s, interval.end_s, values)

    def _see_power(
        self, reading: Reading, between_s: float, seconds: float, held_s: float, *, alone: bool
    ) -> float | None:
        """The mean power in between: as the energy counter tells, else a straight line between readings."""
        rate = self._energy_mj.see(reading.energy_mj, between_s, held_s if alone else 0.0)
        before, after = self._watts_before, reading.power_w if alone else None
        self._watts_before = after
        before = after if before is None else before
        if rate is not None:
            watts = rate / 1000
            if after is None or before is None:
                self._power.add(held_s, watts, watts, watts)
            else:
                self._power.add(held_s, watts, min(before, after), max(before, after))
            return watts
        if after is None or before is None or seconds <= 0:
            return None
        watts = (before + after) / 2
        self._power.add(seconds, watts, min(before, after), max(before, after))
        return watts

    def _see_throttle(
        self, reasons: Sequence[str] | None, seconds: float, values: dict[str, float | None]
    ) -> None:
        """A reason that came or went in between was there for half the time."""
        before, self._reasons_before = self._reasons_before, reasons
        if reasons is None or seconds <= 0:
            return
        if self._throttle_s is None:
            self._throttle_s = {}
        in_force = dict.fromkeys(self._throttle_s, 0.0)
        for some in (reasons, reasons if before is None else before):
            for name in some:
                in_force[name] = in_force.get(name, 0.0) + 0.5
        for name, part in in_force.items():
            self._throttle_s[name] = self._throttle_s.get(name, 0.0) + part * seconds
            values["throttle." + name] = part

    def _see_activity(
        self,
        activity: Activity,
        start_s: float,
        from_s: float,
        interval: Interval,
        values: dict[str, float | None],
    ) -> None:
        """It is a mean over its own seconds: where they began before `from_s`, others had a part in it.

        A device that nobody holds is idle: what was done before the segment or after it was done in it.
        """
        begin_s = interval.at_s - activity.seconds
        if begin_s < from_s - _SAME_S:
            return
        begin_s = max(begin_s, from_s)
        held_from_s = max(begin_s, start_s)
        seconds = interval.end_s - held_from_s
        if seconds <= 0:
            return
        held_part = seconds / (interval.at_s - begin_s)
        if held_part < _LEAST_HELD_PART:
            return
        for name, attribute in _ACTIVITIES.items():
            value = _spread(getattr(activity, attribute), held_part)
            if value is not None:
                value = min(1.0, value)
                self._activities[name].add(seconds, value, value, value)
                values[name] = value
        series = {"sm_active": values.get("sm_active_frac"), "tensor": values.get("tensor_frac")}
        if self._pcie_by_gpm:
            rx = _spread(activity.pcie_rx_bytes_per_s, held_part)
            tx = _spread(activity.pcie_tx_bytes_per_s, held_part)
            for total, rate in ((self._pcie_rx, rx), (self._pcie_tx, tx)):
                if rate is not None:
                    total.add(rate, seconds)
            values |= {"pcie_rx_bytes_per_s": rx, "pcie_tx_bytes_per_s": tx}
            series["pcie"] = _of_both(rx, tx, self._pcie_per_s)
        self._timeline.add(held_from_s, interval.end_s, series)

    def forget(self) -> None:
        """The driver was reloaded, or the device was away: counters start anew."""
        for counter in self._counters:
            counter.forget()

    def fields(self) -> Mapping[str, Any]:
        """What a record tells of all this."""
        no_process = self._no_process.sum.value()
        throttle_s = self._throttle_s
        return {
            "no_process_s": None if no_process is None else round(no_process.seconds * no_process.mean, 3),
            "mem_util_pct": self._mem_util.sum.value(),
            **{name: activity.value() for name, activity in self._activities.items()},
            "power_w": self._power.value(),
            "temp_c": self._temp.sum.value(),
            "sm_clock_mhz": self._clock.sum.value(),
            "processes": self._processes.sum.value(),
            "energy_j": self._energy_mj.total(1000, 3),
            "pcie_rx_bytes": self._pcie_rx.total(),
            "pcie_tx_bytes": self._pcie_tx.total(),
            "nvlink_rx_bytes": self._nvlink_rx.total(),
            "nvlink_tx_bytes": self._nvlink_tx.total(),
            "ecc_corrected": self._ecc_corrected.total(),
            "ecc_uncorrected": self._ecc_uncorrected.total(),
            "throttle_s": None if throttle_s is None else {r: round(s, 3) for r, s in throttle_s.items()},
        }


def _gpm_tells_pcie(reading: Reading) -> bool:
    """Are GPM's rates better than the counters? At full speed 32 bits wrap many times a second."""
    activity, counter = reading.activity, reading.pcie_rx_bytes
    if activity is None or activity.pcie_rx_bytes_per_s is None:
        return False
    return counter is None or counter.bits < 64


def _spread(value: float | None, held_part: float) -> float | None:
    """A mean over some time, as one over the part of it in which all was done."""
    return None if value is None else value / held_part


def _most(per_s: float | None) -> float | None:
    return None if per_s is None else _SLACK * per_s


def _part(value: float | None, whole: float | None) -> float | None:
    return None if value is None or whole is None or whole <= 0 else value / whole


def _of_both(rx: float | None, tx: float | None, per_s: float | None) -> float | None:
    """Both directions together, of what the link carries in both; of one, where only that is known."""
    known = [rate for rate in (rx, tx) if rate is not None]
    if not known or per_s is None or per_s <= 0:
        return None
    return sum(known) / (len(known) * per_s)
