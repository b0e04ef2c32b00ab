"""A fake clock, and fake GPUs with a known schedule that tests compare with records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.reading import (
    DeviceCounter,
    DeviceMemory,
    DeviceProperties,
    Failure,
    GpuProcess,
    ProcessSample,
    ReadError,
    ReaderStartingError,
    Reading,
    ReadRequest,
    Results,
    UtilizationSample,
    Xid,
)
from slurm_gpu.node.process.cgroup import CgroupJob
from slurm_gpu.node.process.process_jobs import ProcessJobs, ProcessOrigin

GIB = 1 << 30
WALL_0 = 1_795_000_000.0
BOOT = "boot-1"
_FIRST_PID = 10_000
_PIDS_BETWEEN = 1_000_000


class FakeClock:
    """A clock that starts some time after boot and advances only when a test advances it."""

    def __init__(self, boot_id: str = BOOT, monotonic_s: float = 1000.0) -> None:
        self.now_s, self.offset_s, self._boot_id = monotonic_s, WALL_0, boot_id

    def wall(self) -> float:
        return self.now_s + self.offset_s

    def monotonic(self) -> float:
        return self.now_s

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class KeptRuns:
    """A spool that stores only ended runs."""

    def __init__(self) -> None:
        self.ended: dict[int, Any] = {}

    def ended_runs(self) -> dict[int, Any]:
        return dict(self.ended)

    def save_ended_run(self, job_id: int, value: Mapping[str, Any]) -> None:
        self.ended[job_id] = value

    def drop_ended_run(self, job_id: int) -> None:
        self.ended.pop(job_id, None)


@dataclass(frozen=True)
class Work:
    """The activity of a job's process `number` on a GPU from `start_s` to `end_s` (monotonic)."""

    job_id: int
    start_s: float
    end_s: float
    percent: float
    memory: int
    number: int = 0

    @property
    def pid(self) -> int:
        return _FIRST_PID + self.job_id + _PIDS_BETWEEN * self.number


def _between(works: Sequence[Work], start_s: float, end_s: float) -> list[Work]:
    """Return each Work that overlaps with the interval."""
    return [work for work in works if work.start_s < end_s and work.end_s > start_s]


def _mean(works: Sequence[Work], start_s: float, end_s: float) -> float:
    """Return the mean utilisation in percent that `works` cause in the interval."""
    busy = sum(work.percent * (min(end_s, work.end_s) - max(start_s, work.start_s)) for work in works)
    return busy / (end_s - start_s)


@dataclass
class FakeGpu:
    """A GPU that does `work`; like the driver's, its ring has a sample in whole percent every 1/6 s.

    While `failure` is set, the GPU cannot be read; `lost` sets the most common failure.
    """

    clock: FakeClock
    uuid: str = "GPU-0"
    minor: int | None = 0
    total: int = 40 * GIB
    ring: bool = True
    process_ring: bool = True
    lost: bool = False
    work: list[Work] = field(default_factory=list)
    tick_s: float = 1 / 6
    failure: Failure | None = None
    reads: int = 0
    more_facts: dict[str, Any] = field(default_factory=dict)
    more_detail: Callable[[], dict[str, Any]] = dict

    @property
    def facts(self) -> DeviceProperties:
        """Return the properties for devices(), with `more_facts`."""
        index = 0 if self.minor is None else self.minor
        return DeviceProperties(**{"uuid": self.uuid, "index": index, "minor": self.minor, **self.more_facts})

    def read(self, request: ReadRequest) -> Reading:
        """Return a reading as a Reader does; `more_detail` adds fields to detailed readings."""
        self.reads += 1
        ring_us, process_us = request.ring_after_us, request.process_ring_after_us
        ring = None if ring_us is None else self.utilization_samples(ring_us)
        detail: dict[str, Any] = {}
        if request.detailed or (ring_us is not None and ring is None):
            util, mem_util = self.utilization()
            detail |= {"util_pct": util, "mem_util_pct": mem_util}
        if request.detailed:
            detail |= {
                "power_w": self.power_w(),
                "temp_c": self.temperature_c(),
                "sm_clock_mhz": self.sm_clock_mhz(),
                "energy_mj": self.energy_mj(),
            } | self.more_detail()
        return Reading(
            at_s=self.clock.now_s,
            memory=self.memory(),
            processes=self.processes() if request.processes else None,
            ring=ring,
            process_ring=None if process_us is None else self.process_samples(process_us),
            **detail,
        )

    def mean(
        self, start_s: float, end_s: float, job_id: int | None = None, *, pid: int | None = None
    ) -> float:
        """Return the true mean utilisation in percent of one job, of one process or of all processes."""
        return _mean(
            [
                work
                for work in _between(self.work, start_s, end_s)
                if job_id in (None, work.job_id) and pid in (None, work.pid)
            ],
            start_s,
            end_s,
        )

    def memory_mean(self, start_s: float, end_s: float, job_id: int | None = None) -> float:
        """Return the true mean of used memory in percent."""
        byte_seconds = 0.0
        for work in _between(self.work, start_s, end_s):
            if job_id in (None, work.job_id):
                byte_seconds += work.memory * (min(end_s, work.end_s) - max(start_s, work.start_s))
        return 100 * byte_seconds / self.total / (end_s - start_s)

    def _ticks(self, after_us: int) -> Sequence[tuple[int, float, float]]:
        """Return (stamp, start, end) of the ring's ticks after a time; the ring covers 20 s."""
        last = math.floor(self.clock.now_s / self.tick_s)
        known = math.floor((after_us / 1e6 - self.clock.offset_s) / self.tick_s) - 1
        ticks = []
        for number in range(max(known, last - round(20 / self.tick_s) + 1), last + 1):
            end_s = number * self.tick_s
            stamp = round((end_s + self.clock.offset_s) * 1e6)
            if stamp > after_us:
                ticks.append((stamp, end_s - self.tick_s, end_s))
        return ticks

    def _done(self, after_us: int) -> Iterator[tuple[int, float, float, Sequence[Work]]]:
        """Yield (stamp, start, end, works) of each of the ring's ticks after a time."""
        ticks = self._ticks(after_us)
        if not ticks:
            return
        near = _between(self.work, min(start_s for _, start_s, _ in ticks), max(end_s for *_, end_s in ticks))
        for stamp, start_s, end_s in ticks:
            yield stamp, start_s, end_s, _between(near, start_s, end_s)

    def utilization_samples(self, after_us: int) -> Sequence[UtilizationSample] | None:
        if not self.ring:
            return None
        samples = []
        for stamp, start_s, end_s, done in self._done(after_us):
            samples.append(UtilizationSample(stamp, float(round(_mean(done, start_s, end_s)))))
        return samples

    def utilization(self) -> tuple[float, float]:
        percent = float(round(self.mean(self.clock.now_s - self.tick_s, self.clock.now_s)))
        return percent, percent / 2

    def _running(self) -> list[Work]:
        return [work for work in self.work if work.start_s <= self.clock.now_s < work.end_s]

    def memory(self) -> DeviceMemory | None:
        return DeviceMemory(sum(work.memory for work in self._running()), self.total)

    def power_w(self) -> float | None:
        return 100.0

    def temperature_c(self) -> float | None:
        return 40.0

    def sm_clock_mhz(self) -> float | None:
        return 1400.0

    def energy_mj(self) -> DeviceCounter | None:
        return DeviceCounter(round(100_000.0 * self.clock.now_s))

    def processes(self) -> Sequence[GpuProcess] | None:
        return [GpuProcess(work.pid, work.memory) for work in self._running()]

    def process_samples(self, after_us: int) -> Sequence[ProcessSample] | None:
        if not self.process_ring:
            return None
        samples = []
        for stamp, start_s, end_s, done in self._done(after_us):
            for pid in sorted({work.pid for work in done}):
                percent = _mean([work for work in done if work.pid == pid], start_s, end_s)
                if percent > 0:
                    samples.append(ProcessSample(pid, stamp, float(round(percent))))
        return samples


@dataclass
class FakeReader:
    """A driver, unless `loaded` is false; `absent` devices cannot be read.

    The driver is also a Follower that creates its samples when they are requested.
    """

    gpus: list[FakeGpu]
    loaded: bool = True
    starting: bool = False
    xids: list[Xid] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    reads: int = 0
    _following: tuple[Sequence[str], float, float] | None = None
    _followed: list[tuple[str, Reading]] = field(default_factory=list)
    _followed_s: float = 0.0

    @property
    def follows(self) -> bool:
        return self._following is not None

    @property
    def overdue_s(self) -> float:
        return math.inf

    def follow(self, uuids: Sequence[str], every_s: float, until_s: float) -> None:
        self._following, self._followed_s = (uuids, every_s, until_s), self.gpus[0].clock.now_s

    def followed(self) -> Sequence[tuple[str, Reading]]:
        self._take_due_samples()
        followed, self._followed = self._followed, []
        return followed

    def _take_due_samples(self) -> None:
        if self._following is None:
            return
        uuids, every_s, until_s = self._following
        clock = self.gpus[0].clock
        now_s = clock.now_s
        gpus = [gpu for gpu in self.gpus if gpu.uuid in uuids]
        if any(gpu.lost or gpu.failure is not None or gpu.uuid in self.absent for gpu in gpus):
            self._following = None
            return
        while (next_s := (self._followed_s // every_s + 1) * every_s) <= now_s and next_s < until_s:
            self._followed_s = clock.now_s = next_s
            self._followed.extend((gpu.uuid, gpu.read(ReadRequest(gpu.uuid))) for gpu in gpus)
        clock.now_s = now_s

    def _stop_following(self) -> None:
        self._take_due_samples()
        self._following = None

    def devices(self) -> Sequence[DeviceProperties]:
        self._stop_following()
        if self.starting:
            raise ReaderStartingError("NVML: the driver is still starting")
        is_down = any(gpu.failure is not None and gpu.failure.kind is ReadError.DRIVER for gpu in self.gpus)
        if is_down or not self.loaded:
            raise NvmlError("NVML: Driver Not Loaded")
        return [gpu.facts for gpu in self.gpus if not gpu.lost and gpu.failure is None]

    @property
    def silent(self) -> Mapping[int, Failure]:
        lost = Failure(ReadError.LOST, "GPU is lost")
        return {
            gpu.facts.index: gpu.failure or lost for gpu in self.gpus if gpu.lost or gpu.failure is not None
        }

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        self._stop_following()
        self.reads += 1
        readings: dict[str, Reading] = {}
        failures: dict[str, Failure] = {}
        shown = {gpu.uuid: gpu for gpu in self.gpus}
        for request in requests:
            gpu = shown.get(request.uuid)
            if gpu is None or gpu.lost:
                failures[request.uuid] = Failure(ReadError.LOST, "GPU is lost")
            elif gpu.failure is not None:
                failures[request.uuid] = gpu.failure
            elif request.uuid not in self.absent:
                readings[request.uuid] = gpu.read(request)
        xids, self.xids = self.xids, []
        return Results(readings=readings, failures=failures, xids=xids)


class FakeProcesses(ProcessJobs):
    """Find the jobs of Work by process ID, unless a process ended before it was first looked up."""

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        super().__init__()
        self._gpus = gpus

    def origin(self, pid: int) -> ProcessOrigin | None:
        alive = {process.pid for gpu in self._gpus for process in gpu.processes() or ()}
        if pid not in alive:
            return None
        origin = ProcessOrigin(b"1", 1001, CgroupJob(pid % _PIDS_BETWEEN - _FIRST_PID), None, None)
        self._remember(pid, origin)
        return origin
