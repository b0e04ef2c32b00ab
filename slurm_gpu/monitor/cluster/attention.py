"""Find running jobs that need attention by applying slurm_gpu.alerts to live values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.alerts.alert import CLOCKS_S, Alert, AlertKind, AlertThresholds
from slurm_gpu.alerts.verdicts import unhealthy
from slurm_gpu.alerts.watch import Watch
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.layout import SquareLayout
from slurm_gpu.wire.live import LIVE_VALID_S

_SUSPENDED = "SUSPENDED"
_RUNS = frozenset({"RUNNING", _SUSPENDED})


@dataclass(frozen=True, slots=True)
class PlacedAlert:
    """An alert with the user of its job and the squares of its devices."""

    alert: Alert
    id: str
    user: str
    uid: int | None
    squares: Sequence[int]


class Attention:
    """Watches jobs over successive states."""

    def __init__(self, watch: Watch | None = None) -> None:
        # While no page is open, live values arrive only every minute, so each value must cover a longer
        # period than by default.
        self._watch = Watch(AlertThresholds(value_for_s=LIVE_VALID_S)) if watch is None else watch
        self._began_s: float | None = None

    @property
    def rules(self) -> AlertThresholds:
        """Return the thresholds of alerts."""
        return self._watch.rules

    def update(self, now_s: float, seen: DatabaseState) -> None:
        """Process a state; jobs without a start time are ignored."""
        jobs = [job for job in seen.cluster.jobs if job.state in _RUNS]
        self._watch.take_in(now_s, jobs, seen.running, seen.live)
        if self._began_s is None:
            self._began_s = now_s

    @property
    def complete_from_s(self) -> float | None:
        """The time from which alerts include all idle jobs; None before the first state."""
        return None if self._began_s is None else self._began_s + self.rules.window_s

    def alerts(self, now_s: float) -> list[Alert]:
        """Return the alerts, the most serious first."""
        return self._watch.alerts(now_s)

    def _current(self, now_s: float, seen: DatabaseState) -> list[Alert]:
        """Return the alerts of the watch, extended by those from records.

        Records show since when a job has not used its GPUs, even before the watch began. In the first
        minutes, the watch cannot find idle jobs, so only records identify them.
        """
        recorded = {(one.job_id, one.kind): one for one in recorded_alerts(now_s, seen, self.rules) or ()}
        found = [
            replace(one, since_s=min(one.since_s, recorded.pop((one.job_id, one.kind), one).since_s))
            for one in self.alerts(now_s)
        ]
        is_complete = self.complete_from_s is not None and now_s >= self.complete_from_s
        return found if is_complete else [*found, *recorded.values()]

    def placed_alerts(self, now_s: float, seen: DatabaseState, layout: SquareLayout) -> list[PlacedAlert]:
        """Return the alerts with their squares, the most serious first."""
        jobs = {job.job_id: job for job in seen.cluster.jobs}
        return [
            PlacedAlert(
                alert=alert,
                id=jobs[alert.job_id].id,
                user=jobs[alert.job_id].user,
                uid=jobs[alert.job_id].uid,
                squares=sorted(layout.square_of[uuid] for uuid in alert.devices if uuid in layout.square_of),
            )
            for alert in worst_first([*self._current(now_s, seen), *verdict_alerts(seen)])
            if alert.job_id in jobs
        ]


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Sort by severity, then by duration."""
    order = {kind: place for place, kind in enumerate(AlertKind)}
    return sorted(alerts, key=lambda alert: (order[alert.kind], alert.since_s, alert.job_id))


def verdict_alerts(seen: DatabaseState) -> list[Alert]:
    """Return alerts for slurm-gpudbd's verdicts on jobs that are still running."""
    runs = {(job.job_id, job.start_s) for job in seen.cluster.jobs if job.state in _RUNS}
    return unhealthy(seen.verdicts, runs, seen.reports, seen.live)


def recorded_alerts(now_s: float, seen: DatabaseState, rules: AlertThresholds) -> list[Alert] | None:
    """Return the alerts that can be derived from records: GPU errors, and jobs that never used their GPUs.

    Return None if the records could not be read. Because records arrive every five minutes, an idle job
    causes an alert only if all of its GPUs are also idle now.
    """
    if seen.running is None:
        return None
    started = {job.job_id: job for job in seen.cluster.jobs if job.state in _RUNS and job.start_s is not None}
    uses, idle_now = seen.uses(), _idle_now(now_s, seen, rules)
    xids = [
        Alert(job_id=xid.job_id, kind=AlertKind.XID, devices=(xid.device,), since_s=xid.at_s, coverage=1.0)
        for xid in seen.running.xids
        if (job := started.get(xid.job_id)) is not None and xid.at_s >= (job.start_s or 0) - CLOCKS_S
    ]
    idle = [
        Alert(
            job_id=job_id,
            kind=AlertKind.NEVER_USED,
            devices=devices,
            since_s=use.start_s,
            coverage=use.coverage,
        )
        for job_id, use in uses.items()
        if (job := started.get(job_id)) is not None
        and job.state != _SUSPENDED
        and use.used is False
        and use.coverage >= rules.min_coverage
        and now_s - use.start_s >= rules.window_s
        and (devices := idle_now.get(job_id, ()))
        and job.n_gpus is not None
        and len(devices) >= job.n_gpus
    ]
    return [*xids, *sorted(idle, key=lambda alert: (alert.since_s, alert.job_id))]


def _idle_now(now_s: float, seen: DatabaseState, rules: AlertThresholds) -> Mapping[int, tuple[str, ...]]:
    """Return the devices of each job whose devices all have recent live values and are all idle."""
    found: dict[int, list[str]] = {}
    busy: set[int] = set()
    for node in seen.live.values():
        is_new = now_s - node.at_s <= LIVE_VALID_S
        for uuid, value in node.devices.items():
            idle = value.util_pct is not None and value.util_pct <= rules.idle_pct
            for job_id in value.jobs:
                found.setdefault(job_id, []).append(uuid)
                if not (is_new and idle):
                    busy.add(job_id)
    return {job_id: tuple(sorted(devices)) for job_id, devices in found.items() if job_id not in busy}
