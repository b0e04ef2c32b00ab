"""Simulated training runs with values for each second, as the watch reads them from slurm-gpudbd."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from slurm_gpu.alerts.suspects import Statement
from slurm_gpu.database.verdicts.accused import Accused
from slurm_gpu.database.verdicts.purpose import adjusted
from slurm_gpu.database.verdicts.store import ACCUSES, HEALTHY, StoredVerdict
from slurm_gpu.database.verdicts.watch import SCAN_S, JobWatch
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import WorkerSeries, align
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice
from tests.database.samples import queued
from tests.diagnose.training import START_S, Training

WHOLE = 1000.0
WINDOW_S = 600
SENT_AFTER_S = 15.0


class Played:
    """Simulated training runs by job; nodes report every ten seconds, and send windows on request."""

    def __init__(
        self,
        trainings: dict[int, Training],
        *,
        users: dict[int, str] | None = None,
        starts: dict[int, int] | None = None,
        same_nodes: bool = False,
    ):
        """Start jobs at `starts` (seconds), on their own nodes or one after the other on the same nodes."""
        self.trainings, self.users, self.starts = trainings, users or {}, starts or {}
        for job, training in trainings.items():
            if not same_nodes:
                training.workers = tuple(
                    replace(worker, node=f"j{job}{worker.node}") for worker in training.workers
                )
        self.values = {job: training.values() for job, training in trainings.items()}
        self.now_s = START_S
        self.over: set[int] = set()
        self.asked: dict[int, float] = {}
        self.n_asked = 0
        self.reported: list[StoredVerdict] = []
        self.apps: dict[int, str] = {}
        self.resized: dict[int, tuple[int, tuple[str, ...]]] = {}
        """By job: the time at which it releases nodes, and the nodes that it keeps."""

    def wall(self):
        return self.now_s

    def queue(self):
        return {
            job: queued(
                job_id=job,
                user=self.users.get(job, "alice"),
                uid=1000 + job,
                start_s=int(START_S) + self.starts.get(job, 0),
                nodes=self._nodes(job),
            )
            for job in self.trainings
            if self._runs(job)
        }

    def _nodes(self, job):
        nodes = tuple(dict.fromkeys(worker.node for worker in self.trainings[job].workers))
        second, kept = self.resized.get(job, (math.inf, nodes))
        return nodes if self.now_s < START_S + second else tuple(node for node in nodes if node in kept)

    def _runs(self, job):
        second = self.now_s - START_S - self.starts.get(job, 0)
        return job not in self.over and 0 <= second < self.trainings[job].n_bins

    def need_live(self, nodes):
        self.needed = set(nodes)

    def live(self):
        found = {}
        for job, training in self.trainings.items():
            if not self._runs(job):
                continue
            for number, name in enumerate(dict.fromkeys(worker.node for worker in training.workers)):
                second = int(self.now_s - START_S)
                second -= (second - 3 * number - job) % 10
                if second >= self.starts.get(job, 0) and name in self._nodes(job):
                    found[name] = self._live(job, name, second)
        return found

    def _live(self, job, node, second):
        at = second - self.starts.get(job, 0)
        values = {metric: matrix[:, at] for metric, matrix in self.values[job].items()}

        def reported(metric, row, whole=1.0):
            return float(values[metric][row]) * whole if metric in values else None

        devices = {}
        for row, worker in enumerate(self.trainings[job].workers):
            if worker.node == node:
                held_down = values.get(Metric.THROTTLE, np.zeros(row + 1))[row] > 0.3
                devices[worker.device] = LiveDevice(
                    util_pct=reported(Metric.UTIL, row, 100.0),
                    mem_used_frac=reported(Metric.MEM_USED, row),
                    power_w=reported(Metric.POWER, row, WHOLE),
                    sm_clock_mhz=reported(Metric.SM_CLOCK, row, WHOLE),
                    sm_active_frac=reported(Metric.SM_ACTIVE, row),
                    tensor_frac=reported(Metric.TENSOR, row),
                    throttle=("hw_thermal_slowdown",) if held_down else (),
                    jobs=(job,),
                )
        return Live(at_s=START_S + second, devices=devices)

    def facts(self, node, uuid):
        return DeviceFacts(
            node=node, uuid=uuid, at_s=0, index=int(uuid[-3:]), power_limit_w=WHOLE, sm_clock_max_mhz=WHOLE
        )

    def index_of(self, node, uuid):
        return int(uuid[-3:])

    def adjusted(self, job, verdict):
        return adjusted(verdict, self.apps.get(job.job_id), None, job.state)

    def ask(self, job):
        self.asked.setdefault(job.job_id, self.now_s)
        self.n_asked += 1

    def series(self, job, *, take_part):
        asked_s = self.asked.get(job.job_id)
        if asked_s is None or self.now_s - asked_s < SENT_AFTER_S:
            return None
        del self.asked[job.job_id]
        training, values = self.trainings[job.job_id], self.values[job.job_id]
        start_s = START_S + self.starts.get(job.job_id, 0)
        stop = int(self.now_s - start_s)
        first = max(0, stop - WINDOW_S)
        courses = [
            WorkerSeries(
                worker=worker,
                start_s=start_s + first,
                width_s=1.0,
                values={metric: matrix[row, first:stop] for metric, matrix in values.items()},
            )
            for row, worker in enumerate(training.workers)
        ]
        return align(courses), None

    def store(self, reported):
        self.reported.append(reported)

    def close_left(self):
        pass

    def statements(self, since_s):
        newest = {(one.verdict.job_id, one.verdict.cause): one for one in self.reported}
        return [
            Statement(
                job=str(one.verdict.job_id),
                user=one.verdict.user,
                at_s=one.verdict.last_s,
                since_s=one.verdict.since_s or one.verdict.reported_at_s,
                accuses=one.verdict.cause == ACCUSES,
                n_gpus=one.n_gpus,
                devices=one.verdict.devices,
            )
            for one in newest.values()
            if one.verdict.cause in (ACCUSES, HEALTHY)
        ]


class Watching:
    """The watch over the simulated jobs."""

    def __init__(self, played: Played):
        self.played = played
        self.watch = JobWatch(played, Accused(played.statements, played.index_of), DiagnosisThresholds())  # type: ignore[arg-type]
        self.first_verdict_s: dict[int, float] = {}
        """The second of the first verdict, by job."""

    def until(self, second):
        """Scan every five seconds up to `second`."""
        while self.played.now_s < START_S + second:
            self.played.now_s += SCAN_S
            self.watch.scan()
            for _, item in self.watch.shown.verdicts:
                self.first_verdict_s.setdefault(item.job_id, self.played.now_s - START_S)
        return {item.job_id: item for _, item in self.watch.shown.verdicts}
