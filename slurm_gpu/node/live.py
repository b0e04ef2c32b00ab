"""Cache the last readings of the GPUs for live values and /metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.daemon import NodeDaemon
from slurm_gpu.node.gpu.reading import (
    DeviceMemory,
    DeviceProperties,
    Failure,
    Follower,
    Reader,
    Reading,
    ReadRequest,
    Results,
    Xid,
)
from slurm_gpu.node.process.node_counters import NodeCounters
from slurm_gpu.node.shipping.ship import ShipmentSource
from slurm_gpu.node.shipping.shipment import JobFacts
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice
from slurm_gpu.wire.live import IDLE_PCT

log = logging.getLogger(__name__)

# Older readings are not reported as current.
FRESH_S = 15.0
_MIB = 1 << 20
_MOST_XIDS = 1000


@dataclass(slots=True)
class LatestReading:
    """The last readings of one device, taken at `at_s`; `detail` is the last detailed reading.

    `computed_s` is the time when the device was last observed to compute, or None if it never was.
    """

    at_s: float
    memory: DeviceMemory | None = None
    util_pct: float | None = None
    computed_s: float | None = None
    detail: Reading | None = None


class CachingReader:
    """A Reader that caches readings; `facts` are the properties of the devices found by the last search.

    `reads` counts the reads, and `failed_reads` counts the requested devices that did not answer. `follower`
    is the same reader if it can sample by itself.
    """

    def __init__(self, reader: Reader, follower: Follower | None = None) -> None:
        self._reader, self._follower = reader, follower
        self._seen: dict[str, LatestReading] = {}
        self.facts: Sequence[DeviceProperties] = ()
        self.reads = self.failed_reads = 0
        self._xids: list[Xid] = []

    def devices(self) -> Sequence[DeviceProperties]:
        """See Reader."""
        self.facts = self._reader.devices()
        return self.facts

    @property
    def silent(self) -> Mapping[int, Failure]:
        """See Reader."""
        return self._reader.silent

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """See Reader."""
        results = self._read(requests)
        if self._xids:
            results = results._replace(xids=[*self._xids, *results.xids])
            self._xids.clear()
        return results

    def read_extra(self, requests: Sequence[ReadRequest]) -> Mapping[str, Reading]:
        """Read devices outside the daemon's schedule; the daemon receives the XIDs with its next read."""
        results = self._read(requests) if requests else Results(readings={}, failures={})
        self._xids += results.xids
        if len(self._xids) > _MOST_XIDS:
            self._keep_first_xids()
        return results.readings

    def _keep_first_xids(self) -> None:
        """Keep only the first XID of each code and device, which is usually the cause of later XIDs."""
        first: dict[tuple[str, int], Xid] = {}
        for xid in self._xids:
            first.setdefault((xid.uuid, xid.code), xid)
        log.warning(
            "of %d XIDs between two reads, only the first of each code and device is kept", len(self._xids)
        )
        self._xids = list(first.values())

    @property
    def follows(self) -> bool:
        """See Follower."""
        return self._follower is not None and self._follower.follows

    @property
    def overdue_s(self) -> float:
        """See Follower."""
        return math.inf if self._follower is None else self._follower.overdue_s

    def follow(self, uuids: Sequence[str], every_s: float, until_s: float) -> None:
        """See Follower."""
        if self._follower is not None:
            self._follower.follow(uuids, every_s, until_s)

    def followed(self) -> Sequence[tuple[str, Reading]]:
        """See Follower."""
        readings = () if self._follower is None else self._follower.followed()
        for uuid, reading in readings:
            self._remember(ReadRequest(uuid), reading)
        self.reads += sum(uuid == readings[0][0] for uuid, _ in readings)
        return readings

    def _read(self, requests: Sequence[ReadRequest]) -> Results:
        results = self._reader.read(requests)
        self.reads += 1
        for request in requests:
            reading = results.readings.get(request.uuid)
            if reading is not None:
                self._remember(request, reading)
                continue
            self.failed_reads += 1
            if request.uuid in results.failures:
                self._seen.pop(request.uuid, None)
        return results

    def _remember(self, request: ReadRequest, reading: Reading) -> None:
        seen = self._seen.get(request.uuid)
        if seen is None:
            seen = self._seen[request.uuid] = LatestReading(reading.at_s)
        seen.at_s, seen.memory = reading.at_s, reading.memory
        if request.detailed:
            seen.detail = reading
        if reading.ring:
            seen.util_pct = reading.ring[-1].percent
        elif reading.util_pct is not None:
            seen.util_pct = reading.util_pct
        elif request.detailed and reading.ring is None:
            seen.util_pct = None
        computed_s = _computed_s(reading)
        if computed_s is not None:
            seen.computed_s = computed_s

    def of(self, uuid: str, now_s: float) -> LatestReading | None:
        """Return the last readings of the device, or None if they are older than FRESH_S."""
        seen = self._seen.get(uuid)
        return seen if seen is not None and now_s - seen.at_s <= FRESH_S else None


class NodeSource(ShipmentSource):
    """Provides the data about the node that is sent in addition to records."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        jobs_by_device: NodeDaemon,
        seen: CachingReader,
        counters: NodeCounters,
        own: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`own` returns further values of the host by name."""
        self._name, self._clock = name, clock
        self._daemon, self._seen, self._counters, self._own = jobs_by_device, seen, counters, own

    def open_jobs(self) -> Sequence[int]:
        """See ShipmentSource."""
        return self._daemon.open_jobs()

    def devices(self) -> Sequence[DeviceFacts]:
        """See ShipmentSource."""
        at_s = int(self._clock.wall())
        return [device_facts(facts, self._name, at_s) for facts in self._seen.facts]

    def live(self) -> Mapping[str, Any]:
        """See ShipmentSource."""
        now_s, jobs_by_device = self._clock.monotonic(), self._daemon.jobs_by_device()
        uuids = dict.fromkeys([*(facts.uuid for facts in self._seen.facts), *jobs_by_device])
        host = asdict(self._counters.sample(now_s))
        del host["at_s"]
        live = Live(
            at_s=round(self._clock.wall(), 3),
            devices={
                uuid: live_device(self._seen.of(uuid, now_s), jobs_by_device.get(uuid, ()), now_s)
                for uuid in uuids
            },
            host={
                name: round(value, 3)
                for name, value in self._daemon.implausible.of_node({**host, **self._own()}).items()
            },
        )
        return live.to_wire()

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        """See ShipmentSource."""
        return self._daemon.windows(job_ids)

    def update_jobs(self, jobs: JobFacts) -> None:
        """See ShipmentSource."""
        self._daemon.update_jobs(jobs)

    def end_jobs(self, jobs: JobFacts) -> None:
        """See ShipmentSource."""
        self._daemon.end_jobs(jobs)


def _computed_s(reading: Reading) -> float | None:
    """Return when the device last computed according to the reading, or None if it did not compute.

    A ring covers the whole time since the last sample, so it includes bursts that current values miss.
    """
    if reading.ring:
        newest_us = reading.ring[-1].at_us
        return next(
            (
                reading.at_s - (newest_us - sample.at_us) / 1e6
                for sample in reversed(reading.ring)
                if sample.percent is not None and sample.percent > IDLE_PCT
            ),
            None,
        )
    return reading.at_s if reading.util_pct is not None and reading.util_pct > IDLE_PCT else None


def live_device(seen: LatestReading | None, jobs: Sequence[int], now_s: float) -> LiveDevice:
    """Return the live values of a device at `now_s`; unknown or old values are None."""
    if seen is None:
        return LiveDevice(jobs=jobs)
    memory, detail = seen.memory, seen.detail
    known = memory is not None and memory.total > 0
    activity = None if detail is None else detail.activity
    return LiveDevice(
        util_pct=seen.util_pct,
        idle_s=None if seen.computed_s is None else round(max(0.0, now_s - seen.computed_s), 3),
        mem_used_mib=None if memory is None else round(memory.used / _MIB, 3),
        mem_used_frac=round(memory.used / memory.total, 6) if memory is not None and known else None,
        power_w=None if detail is None else detail.power_w,
        temp_c=None if detail is None else detail.temp_c,
        sm_clock_mhz=None if detail is None else detail.sm_clock_mhz,
        sm_active_frac=None if activity is None else _fraction(activity.sm_active),
        tensor_frac=None if activity is None else _fraction(activity.tensor),
        processes=None if detail is None or detail.processes is None else len(detail.processes),
        throttle=None if detail is None else detail.throttle,
        jobs=jobs,
    )


def _fraction(value: float | None) -> float | None:
    """Limit a fraction to 0–1 and round it to four digits, to save space in shipments."""
    return None if value is None else round(min(max(value, 0.0), 1.0), 4)


def device_facts(facts: DeviceProperties, node: str, at_s: int) -> DeviceFacts:
    """Return the properties of a device in wire format."""
    values = facts._asdict()
    memory = values.pop("memory_bytes")
    return DeviceFacts(
        node=node, at_s=at_s, memory_mib=None if memory is None else round(memory / _MIB, 3), **values
    )
