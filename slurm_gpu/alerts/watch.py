"""Watches running jobs by live values, and says which need attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.alerts.alert import CLOCKS_S, AlertThresholds, Concern, Flag
from slurm_gpu.alerts.device_history import DeviceHistory, IdlePeriod
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.running import Running

XID_FOR_S = 3600.0
"""So long after it a GPU's error is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds GPUs now."""

    job_id: int
    start_s: float
    """Of this run: one that was requeued is watched anew."""
    suspended: bool = False
    used_before: bool | None = None
    """Whether its records say that it has used its GPUs; None where they say nothing.

    Of a job that began before it was watched only False says that it is unused; of any, True that it is not.
    """
    unused_before: frozenset[str] = frozenset()
    """Devices of which its records say that they have never computed."""


@dataclass(slots=True)
class _WatchedRun:
    start_s: float
    used_before: bool | None = None
    unused_before: frozenset[str] = frozenset()
    courses: dict[str, DeviceHistory] = field(default_factory=dict)
    xids: dict[str, float] = field(default_factory=dict)

    def is_unused(self, uuid: str) -> bool:
        """Whether it is known that this device has never computed for the job."""
        used = self.courses[uuid].used
        return (self.used_before is False or uuid in self.unused_before) if used is None else not used


class Watch:
    """Remembers, of each running job's devices, a window; O(1) for each value that arrives."""

    def __init__(self, rules: AlertThresholds | None = None) -> None:
        self.rules = rules or AlertThresholds()
        self._jobs: dict[int, _WatchedRun] = {}

    def take_in(
        self, now_s: float, jobs: Sequence[ClusterJob], running: Running | None, live: Mapping[str, Live]
    ) -> None:
        """Take in answers of slurm-gpudbd; jobs without a start time are not judged."""
        uses = {} if running is None else running.uses_of({job.job_id: job.start_s for job in jobs})
        watched = [
            RunningJob(
                job_id=job.job_id,
                start_s=job.start_s,
                suspended=job.state == "SUSPENDED",
                used_before=None if (use := uses.get(job.job_id)) is None else use.used,
                unused_before=frozenset(() if use is None else use.unused_devices),
            )
            for job in jobs
            if job.start_s is not None
        ]
        devices = {uuid: (node.at_s, value) for node in live.values() for uuid, value in node.devices.items()}
        self.look(now_s, watched, devices)
        for xid in () if running is None else running.xids:
            self.xid(xid.job_id, xid.device, xid.at_s)

    def look(
        self,
        now_s: float,
        jobs: Iterable[RunningJob],
        devices: Mapping[str, tuple[float, LiveDevice]],
    ) -> None:
        """`jobs` are all that run; `devices` the last value of each by UUID, and when its node told it.

        A device that several jobs hold is judged for none of them: its utilisation is everybody's.
        """
        running = {job.job_id: job for job in jobs}
        self._jobs = {
            job_id: watched
            for job_id, watched in self._jobs.items()
            if job_id in running and running[job_id].start_s == watched.start_s
        }
        for job_id, watched in self._jobs.items():
            # Such as those of a node that it has given up: what they do says nothing of it any more.
            others = [uuid for uuid in watched.courses if not _has(devices.get(uuid), job_id)]
            for uuid in others:
                del watched.courses[uuid]
        for uuid, (at_s, value) in devices.items():
            if len(value.jobs) != 1 or (job := running.get(value.jobs[0])) is None:
                continue
            watched = self._jobs.setdefault(job.job_id, _WatchedRun(job.start_s))
            if job.used_before is not None:
                watched.used_before, watched.unused_before = job.used_before, job.unused_before
            course = watched.courses.get(uuid)
            if course is None or job.suspended:
                # Before its first value nobody saw it; what came before the watch is what the records say.
                late = now_s - job.start_s > self.rules.value_for_s
                used = course.used if course is not None else None if late else False
                since_s = at_s if job.suspended else max(job.start_s, at_s - self.rules.value_for_s)
                course = watched.courses[uuid] = DeviceHistory(since_s, used)
            if not job.suspended:
                course.see(at_s, value, self.rules)

    def xid(self, job_id: int, device: str, at_s: float) -> None:
        """A GPU of a job reported an error; what was before its run began is an earlier run's."""
        watched = self._jobs.get(job_id)
        if watched is not None and at_s >= watched.start_s - CLOCKS_S:
            watched.xids[device] = max(at_s, watched.xids.get(device, at_s))

    def flags(self, now_s: float) -> list[Flag]:
        """All concerns, the worst first, then the longest."""
        found = [flag for job_id, watched in self._jobs.items() for flag in self._of(job_id, watched, now_s)]
        order = {concern: place for place, concern in enumerate(Concern)}
        return sorted(found, key=lambda flag: (order[flag.concern], flag.since_s, flag.job_id))

    def _of(self, job_id: int, watched: _WatchedRun, now_s: float) -> Iterator[Flag]:
        xids = {uuid: at_s for uuid, at_s in watched.xids.items() if now_s - at_s < XID_FOR_S}
        if xids:
            yield _flag(job_id, Concern.XID, xids, max(xids.values()), 1.0)
        courses = watched.courses
        idle = {
            uuid: seen
            for uuid, course in courses.items()
            if (seen := course.idle(now_s, self.rules, unused=watched.is_unused(uuid))) is not None
        }
        unused = [uuid for uuid in idle if watched.is_unused(uuid)]
        if len(idle) == len(courses) and idle:
            # Bursts between two values are in records alone, where slurm-gpud does not tell of them.
            never = len(unused) == len(courses) and watched.used_before is not True
            yield _idle_flag(job_id, Concern.HELD_IDLE if never else Concern.USED_THEN_IDLE, idle, idle)
        full = [uuid for uuid in idle if courses[uuid].memory_is_full(now_s, self.rules)]
        if full:
            yield _idle_flag(job_id, Concern.MEMORY_IDLE, idle, full)
        if unused and not all(watched.is_unused(uuid) for uuid in courses):
            yield _idle_flag(job_id, Concern.PARTLY_UNUSED, idle, unused)
        throttled = {
            uuid: told for uuid, course in courses.items() if (told := course.throttled(now_s, self.rules))
        }
        if throttled:
            since_s = min(since for since, _ in throttled.values())
            yield _flag(job_id, Concern.THROTTLED, throttled, since_s, min(c for _, c in throttled.values()))


def _has(told: tuple[float, LiveDevice] | None, job_id: int) -> bool:
    """Whether a device is the job's; where nobody tells of it, it is as it was."""
    return told is None or job_id in told[1].jobs


def _idle_flag(job_id: int, concern: Concern, idle: Mapping[str, IdlePeriod], some: Iterable[str]) -> Flag:
    """Of some of those that are idle."""
    seen = {uuid: idle[uuid] for uuid in some}
    since_s = max(one.since_s for one in seen.values())
    return _flag(job_id, concern, seen, since_s, min(one.coverage for one in seen.values()))


def _flag(job_id: int, concern: Concern, devices: Iterable[str], since_s: float, coverage: float) -> Flag:
    return Flag(
        job_id=job_id,
        concern=concern,
        devices=tuple(sorted(devices)),
        since_s=since_s,
        coverage=coverage,
    )
