"""Watch running jobs: find unusual GPUs in live values, and diagnose their jobs.

A scan covers the live values of all GPUs. If a GPU differs from its peers, windows are requested from the
nodes of its job, and the job is diagnosed as by `slurm-gpu diagnose`. A stalled job is diagnosed from live
values, which arrive sooner than windows.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu.alerts.episodes import Episode, EpisodeFinding, RunEpisodes
from slurm_gpu.alerts.rotation import JudgingRotation
from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.live.live_needs import n_gpus
from slurm_gpu.database.live.verdict_board import ShownVerdicts
from slurm_gpu.database.verdicts.accused import Accused
from slurm_gpu.database.verdicts.snapshots import VerdictSnapshots
from slurm_gpu.database.verdicts.store import HEALTHY, StoredVerdict
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.hangs import CLEAR_HANG
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.live import LiveTable, UnsharedWorker, fractions, screen
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.verdicts import JobVerdict

log = logging.getLogger(__name__)

SCAN_S = 5.0
# Scans use at most this fraction of one CPU core; the longer a scan takes, the later the next scan starts.
SHARE = 0.08
# Requested windows are read only after this time, because they never arrive sooner.
READ_AFTER_S = 8.0
GIVE_UP_S = 45.0
# A hang that resembles other conditions is reported only after it has lasted this long. Each GPU sends a new
# value within this time.
_STILL_S = 15.0
_SAME_HANG_S = 45.0
_STALLED_AT_ONCE = 8
_STALLED_SCORE = 100.0
# A run that is shorter than this is not evidence that its GPUs are healthy.
_VOUCHES_AFTER_S = 300.0
_NOTHING = (Cause.HEALTHY, Cause.INCONCLUSIVE)


@dataclass(slots=True)
class _WatchedJob:
    job: QueuedJob
    start_s: int
    episodes: RunEpisodes[Verdict]
    judged_live_s: float | None = None
    """The last time at which the job was stalled and was therefore diagnosed from live values."""
    n_moving: int = 0
    hung_s: float = 0.0
    hung_last_s: float = -math.inf
    """`hung_s` and `hung_last_s` are the first and last times at which the job was found to hang."""
    seen_stalled: bool = False
    """Whether live values have confirmed the reported hang."""


class JobWatch:
    """Scans running jobs; call `scan` periodically in a single thread."""

    def __init__(self, snapshots: VerdictSnapshots, accused: Accused, rules: DiagnosisThresholds) -> None:
        self._snapshots, self._accused, self._rules = snapshots, accused, rules
        self._table, self._rotation = LiveTable(), JudgingRotation()
        self._jobs: dict[int, _WatchedJob] = {}
        self._seen_s: dict[str, float] = {}
        self._stalled: set[int] = set()
        self._closed = False
        self.shown = ShownVerdicts()

    def scan(self) -> None:
        """Scan once; raise DatabaseError if the database is unreachable."""
        if not self._closed:
            self._snapshots.close_left()
            self._closed = True
        now_s = self._snapshots.wall()
        queue = self._snapshots.queue()
        if queue is None:
            return
        self._follow(queue, now_s)
        several = (item.job for item in self._jobs.values() if n_gpus(item.job) >= 2)
        self._snapshots.need_live({node for job in several for node in job.nodes})
        self._table.update(
            now_s,
            {job_id: float(item.start_s) for job_id, item in self._jobs.items()},
            self._live_values(self._snapshots.live(), queue),
        )
        watched, screened = self._table.jobs(), screen(self._table)
        self._stalled = {job for job, is_so in zip(screened.jobs, screened.is_stalled, strict=True) if is_so}
        self._judge_stalled(now_s)
        scores = dict(zip(screened.jobs, screened.deviations.tolist(), strict=True))
        scores |= {job: 0.0 if self._jobs[job].seen_stalled else _STALLED_SCORE for job in self._stalled}
        found = {
            job
            for job in scores
            if (self._jobs[job].episodes.reported is not None or self._jobs[job].episodes.unsure)
            # A hang ends when the job continues; live values are enough to detect this.
            and not self._jobs[job].seen_stalled
        }
        for job in self._rotation.next(now_s, scores, found, self._wanted(scores)):
            self._snapshots.ask(self._jobs[job].job)
        for job, since_s in dict(self._rotation.going).items():
            if now_s - since_s >= READ_AFTER_S:
                self._judge(job, now_s, last_chance=now_s - since_s >= GIVE_UP_S)
        self._accused.refresh(now_s)
        self.shown = ShownVerdicts(
            as_of_s=now_s,
            watched=len(watched),
            verdicts=[
                (item.job.uid, _job_verdict(item, item.episodes.reported))
                for item in self._jobs.values()
                if item.episodes.reported is not None
            ],
            suspects=self._accused.suspects,
        )

    def _follow(self, queue: Mapping[int, QueuedJob], now_s: float) -> None:
        """Update the running jobs; close the verdicts on jobs that have ended."""
        for job_id in list(self._jobs):
            item, job = self._jobs[job_id], queue.get(job_id)
            if job is None or job.state != "RUNNING" or job.start_s != item.start_s:
                self._store_changes(item, item.episodes.over(now_s))
                del self._jobs[job_id]
        for job_id, job in queue.items():
            if job.state == "RUNNING" and job.start_s is not None:
                if job_id in self._jobs:
                    if self._jobs[job_id].job.nodes != job.nodes:
                        self._table.keep_nodes(job_id, job.nodes)
                    self._jobs[job_id].job = job
                else:
                    self._jobs[job_id] = _WatchedJob(job, job.start_s, RunEpisodes())

    def _live_values(
        self, live: Mapping[str, Live], queue: Mapping[int, QueuedJob]
    ) -> Iterator[tuple[UnsharedWorker, float, tuple[float, ...]]]:
        """Yield new live values of GPUs that belong to a single job; jobs that share a GPU are not watched.

        Values are matched to a Slurm job only on the job's own nodes, since machines without Slurm assign
        their own job IDs.
        """
        there = {(node, job_id) for job_id in self._jobs for node in queue[job_id].nodes}
        shares = {
            job_id
            for name, node in live.items()
            for device in node.devices.values()
            if len(device.jobs) > 1
            for job_id in device.jobs
            if (name, job_id) in there
        }
        shared = _on_shared_nodes(queue)
        seen_s, self._seen_s = self._seen_s, {name: node.at_s for name, node in live.items()}
        for name, node in live.items():
            if seen_s.get(name) == node.at_s:
                continue
            for uuid, device in node.devices.items():
                if len(device.jobs) != 1 or device.jobs[0] in shares or (name, device.jobs[0]) not in there:
                    continue
                facts = self._snapshots.facts(name, uuid)
                worker = JobWorker(node=name, device=uuid, index=None if facts is None else facts.index)
                host = {} if device.jobs[0] in shared else node.host
                yield UnsharedWorker(device.jobs[0], worker), node.at_s, fractions(device, facts, host)

    def _judge_stalled(self, now_s: float) -> None:
        """Diagnose stalled jobs; close the hang verdicts on jobs that continue."""
        for job_id, item in self._jobs.items():
            item.seen_stalled = self._hangs(job_id) and (item.seen_stalled or job_id in self._stalled)
            if item.seen_stalled and job_id not in self._stalled:
                item.n_moving += 1
                if item.n_moving >= 2:
                    self._store_changes(item, item.episodes.over(now_s))
            else:
                item.n_moving = 0
        waiting = sorted(self._stalled, key=lambda job: self._jobs[job].judged_live_s or 0.0)
        for job_id in waiting[:_STALLED_AT_ONCE]:
            item = self._jobs[job_id]
            item.judged_live_s = now_s
            verdict = diagnose(self._table.series(job_id), rules=self._rules, running=True)
            if verdict.cause is Cause.HANG:
                self._add_verdict(item, verdict, now_s)

    def _hangs(self, job_id: int) -> bool:
        """Return whether a hang is currently reported for the job."""
        reported = self._jobs[job_id].episodes.reported
        return reported is not None and reported.found.cause == Cause.HANG

    def _wanted(self, scores: Mapping[int, float]) -> set[int]:
        """Return the jobs on suspected GPUs, which are diagnosed because a healthy job is evidence, too."""
        accused = self._accused.places
        if not accused:
            return set()
        return {job for job in scores if not accused.isdisjoint(self._places(job))}

    def _places(self, job_id: int) -> set[tuple[str, str]]:
        return {(worker.node, worker.device) for worker in self._table.workers(job_id)}

    def _judge(self, job_id: int, now_s: float, *, last_chance: bool) -> None:
        """Diagnose a job from the windows that have arrived."""
        item = self._jobs[job_id]
        windows = self._snapshots.series(item.job, take_part=last_chance)
        if windows is None and not last_chance:
            return
        if windows is None:
            self._rotation.judged(job_id, now_s, found=False, settled=True)
            return
        series, groups = windows
        verdict = diagnose(series, groups=groups, rules=self._rules, running=True)
        self._add_verdict(item, verdict, now_s)
        if verdict.cause is Cause.HEALTHY:
            self._store_healthy(item, verdict, now_s)
        episodes = item.episodes
        self._rotation.judged(job_id, now_s, found=episodes.reported is not None, settled=not episodes.unsure)

    def _add_verdict(self, item: _WatchedJob, verdict: Verdict, now_s: float) -> None:
        if verdict.cause not in _NOTHING:
            verdict = self._snapshots.adjusted(item.job, verdict)
        if verdict.cause is Cause.INCONCLUSIVE and not verdict.finds_nothing:
            return  # an unknown cause does not contradict a verdict
        hangs = self._hangs(item.job.job_id) and item.job.job_id in self._stalled
        if hangs and verdict.cause is not Cause.HANG:
            return  # the window of a long hang no longer contains the computation before it
        if verdict.cause is Cause.HANG:
            if now_s - item.hung_last_s > _SAME_HANG_S:
                item.hung_s = now_s
            item.hung_last_s = now_s
            if verdict.strength < CLEAR_HANG and now_s - item.hung_s < _STILL_S:
                return  # loading and similar phases may resemble a hang for a while
        cause = None if verdict.cause in _NOTHING or verdict.suspect else verdict.cause.value
        finding = EpisodeFinding(cause, verdict.strength, verdict)
        self._store_changes(item, item.episodes.add(finding, now_s))

    def _store_changes(self, item: _WatchedJob, changes: list[Episode[Verdict]]) -> None:
        for episode in changes:
            reported = _job_verdict(item, episode)
            ended_s = None if episode.ended_s is None else int(episode.ended_s)
            if ended_s is not None or episode.reported_at_s == episode.last_s:
                change = "is over" if ended_s is not None else f"confidence {reported.confidence:.0%}"
                log.info("job %s of %s: %s: %s", item.job.label, reported.user, reported.cause, change)
            self._snapshots.store(
                StoredVerdict(
                    verdict=reported, uid=item.job.uid, n_gpus=self._n_gpus(item.job.job_id), ended_s=ended_s
                )
            )

    def _store_healthy(self, item: _WatchedJob, verdict: Verdict, now_s: float) -> None:
        """Store a healthy job on suspected GPUs as evidence that the GPUs work."""
        places = sorted(self._accused.places & self._places(item.job.job_id))
        if not places or item.episodes.reported is not None or now_s - item.start_s < _VOUCHES_AFTER_S:
            return
        healthy = JobVerdict(
            job_id=item.job.job_id,
            start_s=item.start_s,
            user=item.job.user,
            cause=HEALTHY,
            kind="",
            confidence=verdict.confidence,
            devices=places,
            nodes=(),
            since_s=None,
            reported_at_s=int(now_s),
            last_s=int(now_s),
            verdict={},
        )
        n_gpus = self._n_gpus(item.job.job_id)
        stored = StoredVerdict(verdict=healthy, uid=item.job.uid, n_gpus=n_gpus, ended_s=int(now_s))
        self._snapshots.store(stored)

    def _n_gpus(self, job_id: int) -> float:
        return float(self._table.jobs().get(job_id, 0))


def _on_shared_nodes(queue: Mapping[int, QueuedJob]) -> set[int]:
    """Return the jobs that share a node with another job; host metrics of such a node include both jobs."""
    holding = [job for job in queue.values() if job.state in ALLOCATED_STATES]
    on = Counter(node for job in holding for node in job.nodes)
    return {job.job_id for job in holding if any(on[node] > 1 for node in job.nodes)}


def _job_verdict(item: _WatchedJob, episode: Episode[Verdict]) -> JobVerdict:
    verdict = episode.found.detail
    body = verdict.to_json()
    del body["groups"]
    return JobVerdict(
        job_id=item.job.job_id,
        start_s=item.start_s,
        user=item.job.user,
        cause=verdict.cause.value,
        kind=verdict.kind,
        confidence=round(verdict.confidence, 3),
        devices=tuple((worker.node, worker.device) for worker in verdict.culprits),
        nodes=tuple(verdict.nodes),
        since_s=verdict.since_s,
        reported_at_s=int(episode.reported_at_s),
        last_s=int(episode.last_s),
        verdict=body,
    )


def run_watch(
    watch: JobWatch, show: Callable[[ShownVerdicts], None], stop: threading.Event, clock: Clock
) -> None:
    """Scan until `stop` is set, using at most SHARE of a CPU core; log errors and continue."""
    outage = OutageLog(
        log, "running jobs could not be checked: %s", clock, over="running jobs are checked again"
    )
    while not stop.wait(SCAN_S):
        began = time.thread_time()
        try:
            watch.scan()
            show(watch.shown)
            outage.worked()
        except Exception as error:  # the data is unreadable, or the database is unreachable
            outage.failed(error)
        took_s = time.thread_time() - began
        stop.wait(max(0.0, took_s / SHARE - SCAN_S))
