"""Watch the live values of running jobs, and return alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.alerts.alert import CLOCKS_S, Alert, AlertKind, AlertThresholds
from slurm_gpu.alerts.device_history import DeviceHistory, IdlePeriod
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.running import Running

# Duration of the alert after a GPU error.
XID_FOR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job with allocated GPUs."""

    job_id: int
    start_s: float
    """Start of this run; when a job is requeued, the history of its earlier run is discarded."""
    suspended: bool = False
    used_before: bool | None = None
    """Whether the job's records show use of its GPUs; None if they are inconclusive.

    If a job started before the watch, only False proves that its GPUs were unused. True always proves use.
    """
    unused_before: frozenset[str] = frozenset()
    """Devices that were never used according to the job's records."""


@dataclass(slots=True)
class _WatchedRun:
    start_s: float
    used_before: bool | None = None
    unused_before: frozenset[str] = frozenset()
    histories: dict[str, DeviceHistory] = field(default_factory=dict)
    xids: dict[str, float] = field(default_factory=dict)

    def is_unused(self, uuid: str) -> bool:
        """Return whether the job is known never to have used this device."""
        used = self.histories[uuid].used
        return (self.used_before is False or uuid in self.unused_before) if used is None else not used


class Watch:
    """A window of values for each device of the running jobs; adding a value takes O(1) time."""

    def __init__(self, rules: AlertThresholds | None = None) -> None:
        self.rules = rules or AlertThresholds()
        self._jobs: dict[int, _WatchedRun] = {}

    def take_in(
        self, now_s: float, jobs: Sequence[ClusterJob], running: Running | None, live: Mapping[str, Live]
    ) -> None:
        """Add the responses of slurm-gpudbd; jobs without a start time are skipped."""
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
        self.update(now_s, watched, devices)
        for xid in () if running is None else running.xids:
            self.xid(xid.job_id, xid.device, xid.at_s)

    def update(
        self,
        now_s: float,
        jobs: Iterable[RunningJob],
        devices: Mapping[str, tuple[float, LiveDevice]],
    ) -> None:
        """Add a sample of all running `jobs`; `devices` contains the last values and their times.

        A device that several jobs share is skipped, because its utilisation cannot be attributed to one job.
        """
        running = {job.job_id: job for job in jobs}
        self._jobs = {
            job_id: watched
            for job_id, watched in self._jobs.items()
            if job_id in running and running[job_id].start_s == watched.start_s
        }
        for job_id, watched in self._jobs.items():
            # The job may have lost a node, whose later values do not describe this job.
            others = [uuid for uuid in watched.histories if not _has(devices.get(uuid), job_id)]
            for uuid in others:
                del watched.histories[uuid]
        for uuid, (at_s, value) in devices.items():
            if len(value.jobs) != 1 or (job := running.get(value.jobs[0])) is None:
                continue
            watched = self._jobs.setdefault(job.job_id, _WatchedRun(job.start_s))
            if job.used_before is not None:
                watched.used_before, watched.unused_before = job.used_before, job.unused_before
            history = watched.histories.get(uuid)
            if history is None or job.suspended:
                # Use before the first value was not observed; the job's records cover the time before the
                # watch.
                late = now_s - job.start_s > self.rules.value_for_s
                used = history.used if history is not None else None if late else False
                since_s = at_s if job.suspended else max(job.start_s, at_s - self.rules.value_for_s)
                history = watched.histories[uuid] = DeviceHistory(since_s, used)
            if not job.suspended:
                history.add(at_s, value, self.rules)

    def xid(self, job_id: int, device: str, at_s: float) -> None:
        """Record a GPU error of a job; ignore an error from before the job's start."""
        watched = self._jobs.get(job_id)
        if watched is not None and at_s >= watched.start_s - CLOCKS_S:
            watched.xids[device] = max(at_s, watched.xids.get(device, at_s))

    def alerts(self, now_s: float) -> list[Alert]:
        """Return all alerts, sorted by severity and then by duration."""
        found = [one for job_id, watched in self._jobs.items() for one in self._of(job_id, watched, now_s)]
        order = {kind: place for place, kind in enumerate(AlertKind)}
        return sorted(found, key=lambda alert: (order[alert.kind], alert.since_s, alert.job_id))

    def _of(self, job_id: int, watched: _WatchedRun, now_s: float) -> Iterator[Alert]:
        xids = {uuid: at_s for uuid, at_s in watched.xids.items() if now_s - at_s < XID_FOR_S}
        if xids:
            yield _alert(job_id, AlertKind.XID, xids, max(xids.values()), 1.0)
        histories = watched.histories
        idle = {
            uuid: seen
            for uuid, history in histories.items()
            if (seen := history.idle(now_s, self.rules, unused=watched.is_unused(uuid))) is not None
        }
        unused = [uuid for uuid in idle if watched.is_unused(uuid)]
        if len(idle) == len(histories) and idle:
            # Live values without `idle_s` miss short use between two samples, but records include it.
            never = len(unused) == len(histories) and watched.used_before is not True
            yield _idle_alert(job_id, AlertKind.NEVER_USED if never else AlertKind.USED_THEN_IDLE, idle, idle)
        full = [uuid for uuid in idle if histories[uuid].memory_is_full(now_s, self.rules)]
        if full:
            yield _idle_alert(job_id, AlertKind.MEMORY_IDLE, idle, full)
        if unused and not all(watched.is_unused(uuid) for uuid in histories):
            yield _idle_alert(job_id, AlertKind.PARTLY_UNUSED, idle, unused)
        throttled = {
            uuid: found
            for uuid, history in histories.items()
            if (found := history.throttled(now_s, self.rules))
        }
        if throttled:
            since_s, coverage = (min(values) for values in zip(*throttled.values(), strict=True))
            yield _alert(job_id, AlertKind.THROTTLED, throttled, since_s, coverage)


def _has(reported: tuple[float, LiveDevice] | None, job_id: int) -> bool:
    """Return whether a device belongs to the job; if there is no report, assume that nothing changed."""
    return reported is None or job_id in reported[1].jobs


def _idle_alert(job_id: int, kind: AlertKind, idle: Mapping[str, IdlePeriod], some: Iterable[str]) -> Alert:
    """Build an alert on the devices `some`, which must be among the idle devices."""
    seen = {uuid: idle[uuid] for uuid in some}
    since_s = max(one.since_s for one in seen.values())
    return _alert(job_id, kind, seen, since_s, min(one.coverage for one in seen.values()))


def _alert(job_id: int, kind: AlertKind, devices: Iterable[str], since_s: float, coverage: float) -> Alert:
    return Alert(
        job_id=job_id,
        kind=kind,
        devices=tuple(sorted(devices)),
        since_s=since_s,
        coverage=coverage,
    )
