"""The cumulative record of one segment on one device, built from looks in O(1) memory.

All times here are Clock.monotonic() seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_gpu.node.intervals import Readings
from slurm_gpu.node.statistics import HistogramSum, MeanSum
from slurm_gpu.records import Record, Total


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """What names a segment and the run that it belongs to, as the prolog told."""

    cluster: str
    job_id: int
    restart: int
    prolog_s: int
    node: str
    boot_id: str
    segment: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a device on behalf of one segment: what it saw as this segment's own; None = unknown.

    `detailed` is False for the frequent looks at memory alone, whose other fields mean nothing.
    """

    memory_used: int | None
    memory_total: int | None
    detailed: bool = False
    memory_util_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    energy_j: float | None = None
    processes: int | None = None


_DETAILS = {
    "mem_util_pct": "memory_util_pct",
    "power_w": "power_w",
    "temp_c": "temperature_c",
    "sm_clock_mhz": "sm_clock_mhz",
    "processes": "processes",
}


@dataclass(slots=True)
class _Gauge:
    readings: Readings
    sum: MeanSum = field(default_factory=MeanSum)


class Tally:
    """All that is known so far of one segment on one device, from `start_s` until `end_s` if it ended.

    `start_wall_s` is the wall clock at `start_s`; later moments are told from it by the monotonic clock.
    """

    def __init__(self, key: SegmentKey, device: str, start_s: float, start_wall_s: float) -> None:
        self.key, self.device = key, device
        self.start_s, self.start_wall_s = start_s, start_wall_s
        self.end_s: float | None = None
        self.granted_mgpu: int | None = None
        self._seq = 0
        self._util = HistogramSum()
        self._device_util = MeanSum()
        self._memory = Readings(start_s)
        self._mem_mib = MeanSum()
        self._mem_frac = MeanSum()
        self._mem_hist = HistogramSum()
        self._gauges = {name: _Gauge(Readings(start_s)) for name in _DETAILS}
        self._no_process = _Gauge(Readings(start_s))
        self._energy = Readings(start_s)
        self._energy_total: Total | None = None

    def utilization(self, seconds: float, own: float | None, device: float) -> None:
        """Count time at a utilization in percent; `own` is None where the job's share is unknown."""
        if own is not None:
            self._util.add(seconds, own)
        self._device_util.add(seconds, device, device, device)

    def look(self, at_s: float, look: Look, gap_s: float, detail_gap_s: float) -> None:
        """Count what was seen at `at_s`."""
        self._look_at_memory(at_s, look, gap_s)
        if not look.detailed:
            return
        for name, attribute in _DETAILS.items():
            gauge = self._gauges[name]
            self._gauge(gauge, at_s, getattr(look, attribute), detail_gap_s)
        none = None if look.processes is None else float(look.processes == 0)
        self._gauge(self._no_process, at_s, none, detail_gap_s)
        interval = self._energy.interval(at_s, look.energy_j, self.end_s, detail_gap_s)
        if interval is not None and interval.after >= interval.before:
            # A counter that went back was reset with the driver: how far it had come is unknown.
            so_far = self._energy_total or Total(0.0, 0.0)
            self._energy_total = Total(
                round(so_far.seconds + interval.seconds, 6),
                round(so_far.total + interval.after - interval.before, 6),
            )

    def _look_at_memory(self, at_s: float, look: Look, gap_s: float) -> None:
        total = look.memory_total
        used = None if not total else look.memory_used
        interval = self._memory.interval(at_s, used, self.end_s, gap_s)
        if interval is None or not total:
            return
        low, high = sorted((interval.before, interval.after))
        self._mem_mib.add(interval.seconds, interval.mean / 2**20, low / 2**20, high / 2**20)
        self._mem_frac.add(interval.seconds, interval.mean / total, low / total, high / total)
        self._mem_hist.add(interval.seconds, 100 * interval.mean / total)

    def _gauge(self, gauge: _Gauge, at_s: float, value: float | None, gap_s: float) -> None:
        interval = gauge.readings.interval(at_s, value, self.end_s, gap_s)
        if interval is not None:
            low, high = sorted((interval.before, interval.after))
            gauge.sum.add(interval.seconds, interval.mean, low, high)

    def record(self, now_s: float, *, final: bool = False) -> Record:
        """The record as of `now_s`, with the next sequence number."""
        self._seq += 1
        stop = now_s if self.end_s is None else min(now_s, self.end_s)
        held = max(0.0, stop - self.start_s)
        util, mem = self._util.value, self._mem_hist.value
        no_process = self._no_process.sum.value
        gauges = {name: gauge.sum.value for name, gauge in self._gauges.items()}
        return Record(
            cluster=self.key.cluster,
            job_id=self.key.job_id,
            restart=self.key.restart,
            prolog_s=self.key.prolog_s,
            node=self.key.node,
            boot_id=self.key.boot_id,
            segment=self.key.segment,
            device=self.device,
            seq=self._seq,
            final=final,
            first_s=int(self.start_wall_s),
            last_s=int(self.start_wall_s + held),
            held_s=round(held, 6),
            sampled_s=min(round((self._mem_hist if util is None else self._util).seconds, 6), round(held, 6)),
            no_process_s=None if no_process is None else round(no_process.seconds * no_process.mean, 6),
            granted_mgpu=self.granted_mgpu,
            util_hist_ms=util,
            mem_hist_ms=mem,
            device_util_pct=self._device_util.value,
            mem_used_mib=self._mem_mib.value,
            mem_used_frac=self._mem_frac.value,
            mem_util_pct=gauges["mem_util_pct"],
            power_w=gauges["power_w"],
            temp_c=gauges["temp_c"],
            sm_clock_mhz=gauges["sm_clock_mhz"],
            processes=gauges["processes"],
            energy_j=self._energy_total,
        )
