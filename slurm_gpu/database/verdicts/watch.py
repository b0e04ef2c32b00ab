"""The watch over running jobs: live values tell who looks different, a full judgement whether it is trouble.

A look goes over the live values of all GPUs. Whoever looks different among its peers gets its turn: its nodes
are asked for their windows, as `slurm-gpu diagnose` does, and what that would say is what is told. A job that
stands still is judged by the live values themselves, which is faster than any window comes.
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
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.live import LiveTable, UnsharedWorker, fractions, screen
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.stalls import SURE
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.verdicts import JobVerdict

log = logging.getLogger(__name__)

LOOK_S = 5.0
SHARE = 0.08
"""Of one core it takes so much at most: after a look that cost more the next one is later."""
READ_AFTER_S = 8.0
"""Sooner no window comes that was asked for."""
GIVE_UP_S = 45.0
_STILL_S = 15.0
"""So long after it was found a hang has to be one still, unless nothing else looks like it: another value
of each GPU, and then some."""
_SAME_HANG_S = 45.0
_STANDING_AT_ONCE = 8
_STANDS_SCORE = 100.0
_VOUCHES_AFTER_S = 300.0
"""A run that is shorter says nothing for its GPUs."""
_NOTHING = (Cause.HEALTHY, Cause.UNKNOWN)


@dataclass(slots=True)
class _WatchedJob:
    job: QueuedJob
    start_s: int
    course: RunEpisodes[Verdict]
    stood_s: float | None = None
    """When a job that stands still was judged by its live values last."""
    went_on: int = 0
    hung_s: float = 0.0
    hung_last_s: float = -math.inf
    """When it was first, and last, found to hang."""
    stood: bool = False
    """Whether live values have shown the hang that is told."""


class JobWatch:
    """`look` once in a while, in one thread."""

    def __init__(self, looks: VerdictSnapshots, accused: Accused, rules: DiagnosisThresholds) -> None:
        self._looks, self._accused, self._rules = looks, accused, rules
        self._table, self._turns = LiveTable(), JudgingRotation()
        self._jobs: dict[int, _WatchedJob] = {}
        self._seen_s: dict[str, float] = {}
        self._stands: set[int] = set()
        self._closed = False
        self.shown = ShownVerdicts()

    def look(self) -> None:
        """Look once; raises DatabaseError where the database is away."""
        if not self._closed:
            self._looks.close_left()
            self._closed = True
        now_s = self._looks.wall()
        queue = self._looks.queue()
        if queue is None:
            return
        self._follow(queue, now_s)
        several = (item.job for item in self._jobs.values() if n_gpus(item.job) >= 2)
        self._looks.need_live({node for job in several for node in job.nodes})
        self._table.update(
            now_s,
            {job_id: float(item.start_s) for job_id, item in self._jobs.items()},
            self._told(self._looks.live(), queue),
        )
        watched, screened = self._table.jobs(), screen(self._table)
        self._stands = {job for job, is_so in zip(screened.jobs, screened.is_stalled, strict=True) if is_so}
        self._stand(now_s)
        scores = dict(zip(screened.jobs, screened.deviations.tolist(), strict=True))
        scores |= {job: 0.0 if self._jobs[job].stood else _STANDS_SCORE for job in self._stands}
        found = {
            job
            for job in scores
            if (self._jobs[job].course.reported is not None or self._jobs[job].course.unsure)
            and not self._jobs[job].stood  # that is over when it goes on, which no window need tell
        }
        for job in self._turns.next(now_s, scores, found, self._wanted(scores)):
            self._looks.ask(self._jobs[job].job)
        for job, since_s in dict(self._turns.going).items():
            if now_s - since_s >= READ_AFTER_S:
                self._judge(job, now_s, last_chance=now_s - since_s >= GIVE_UP_S)
        self._accused.look(now_s)
        self.shown = ShownVerdicts(
            as_of_s=now_s,
            watched=len(watched),
            verdicts=[
                (item.job.uid, _to_tell(item, item.course.reported))
                for item in self._jobs.values()
                if item.course.reported is not None
            ],
            suspects=self._accused.suspects,
        )

    def _follow(self, queue: Mapping[int, QueuedJob], now_s: float) -> None:
        """Who runs now; what was told of others is over."""
        for job_id in list(self._jobs):
            item, job = self._jobs[job_id], queue.get(job_id)
            if job is None or job.state != "RUNNING" or job.start_s != item.start_s:
                self._tell(item, item.course.over(now_s))
                del self._jobs[job_id]
        for job_id, job in queue.items():
            if job.state == "RUNNING" and job.start_s is not None:
                if job_id in self._jobs:
                    if self._jobs[job_id].job.nodes != job.nodes:
                        self._table.keep_nodes(job_id, job.nodes)
                    self._jobs[job_id].job = job
                else:
                    self._jobs[job_id] = _WatchedJob(job, job.start_s, RunEpisodes())

    def _told(
        self, live: Mapping[str, Live], queue: Mapping[int, QueuedJob]
    ) -> Iterator[tuple[UnsharedWorker, float, tuple[float, ...]]]:
        """Of GPUs that one job holds for itself; a job that shares some is not watched at all.

        A machine without Slurm counts jobs by itself: of Slurm's is what their own nodes tell.
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
        crowded = _crowded(queue)
        seen_s, self._seen_s = self._seen_s, {name: node.at_s for name, node in live.items()}
        for name, node in live.items():
            if seen_s.get(name) == node.at_s:
                continue
            for uuid, device in node.devices.items():
                if len(device.jobs) != 1 or device.jobs[0] in shares or (name, device.jobs[0]) not in there:
                    continue
                facts = self._looks.facts(name, uuid)
                worker = JobWorker(node=name, device=uuid, index=None if facts is None else facts.index)
                host = {} if device.jobs[0] in crowded else node.host
                yield UnsharedWorker(device.jobs[0], worker), node.at_s, fractions(device, facts, host)

    def _stand(self, now_s: float) -> None:
        """Judge who stands still; who did, and goes on, has recovered."""
        for job_id, item in self._jobs.items():
            item.stood = self._hangs(job_id) and (item.stood or job_id in self._stands)
            if item.stood and job_id not in self._stands:
                item.went_on += 1
                if item.went_on >= 2:
                    self._tell(item, item.course.over(now_s))
            else:
                item.went_on = 0
        waiting = sorted(self._stands, key=lambda job: self._jobs[job].stood_s or 0.0)
        for job_id in waiting[:_STANDING_AT_ONCE]:
            item = self._jobs[job_id]
            item.stood_s = now_s
            verdict = diagnose(self._table.series(job_id), rules=self._rules, running=True)
            if verdict.cause is Cause.HANG:
                self._hear(item, verdict, now_s)

    def _hangs(self, job_id: int) -> bool:
        """Whether that is told of it."""
        told = self._jobs[job_id].course.reported
        return told is not None and told.found.cause == Cause.HANG

    def _wanted(self, scores: Mapping[int, float]) -> set[int]:
        """Jobs on GPUs that stand accused: whether they are well there counts."""
        accused = self._accused.places
        if not accused:
            return set()
        return {job for job in scores if not accused.isdisjoint(self._places(job))}

    def _places(self, job_id: int) -> set[tuple[str, str]]:
        return {(worker.node, worker.device) for worker in self._table.workers(job_id)}

    def _judge(self, job_id: int, now_s: float, *, last_chance: bool) -> None:
        """By its windows, as far as they are there."""
        item = self._jobs[job_id]
        told = self._looks.series(item.job, take_part=last_chance)
        if told is None and not last_chance:
            return
        if told is None:
            self._turns.judged(job_id, now_s, found=False, settled=True)
            return
        series, groups = told
        verdict = diagnose(series, groups=groups, rules=self._rules, running=True)
        self._hear(item, verdict, now_s)
        if verdict.cause is Cause.HEALTHY:
            self._vouch(item, verdict, now_s)
        course = item.course
        self._turns.judged(job_id, now_s, found=course.reported is not None, settled=not course.unsure)

    def _hear(self, item: _WatchedJob, verdict: Verdict, now_s: float) -> None:
        if verdict.cause not in _NOTHING:
            verdict = self._looks.in_its_place(item.job, verdict)
        if verdict.cause is Cause.UNKNOWN:
            return  # it contradicts nothing
        hangs = self._hangs(item.job.job_id) and item.job.job_id in self._stands
        if hangs and verdict.cause is not Cause.HANG:
            return  # of a job that hangs for long, a window has forgotten that it ever computed
        if verdict.cause is Cause.HANG:
            if now_s - item.hung_last_s > _SAME_HANG_S:
                item.hung_s = now_s
            item.hung_last_s = now_s
            if verdict.confidence < SURE and now_s - item.hung_s < _STILL_S:
                return  # loading and the like may look so for a while
        cause = None if verdict.cause in _NOTHING else verdict.cause.value
        self._tell(item, item.course.add(EpisodeFinding(cause, verdict.confidence, verdict), now_s))

    def _tell(self, item: _WatchedJob, changes: list[Episode[Verdict]]) -> None:
        for episode in changes:
            told = _to_tell(item, episode)
            ended_s = None if episode.ended_s is None else int(episode.ended_s)
            if ended_s is not None or episode.reported_at_s == episode.last_s:
                said = "is over" if ended_s is not None else f"confidence {told.confidence:.0%}"
                log.info("job %s of %s: %s: %s", item.job.label, told.user, told.cause, said)
            self._looks.store(
                StoredVerdict(
                    verdict=told, uid=item.job.uid, n_gpus=self._n_gpus(item.job.job_id), ended_s=ended_s
                )
            )

    def _vouch(self, item: _WatchedJob, verdict: Verdict, now_s: float) -> None:
        """A job that is well on GPUs that stand accused speaks for them."""
        places = sorted(self._accused.places & self._places(item.job.job_id))
        if not places or item.course.reported is not None or now_s - item.start_s < _VOUCHES_AFTER_S:
            return
        told = JobVerdict(
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
        self._looks.store(StoredVerdict(verdict=told, uid=item.job.uid, n_gpus=n_gpus, ended_s=int(now_s)))

    def _n_gpus(self, job_id: int) -> float:
        return float(self._table.jobs().get(job_id, 0))


def _crowded(queue: Mapping[int, QueuedJob]) -> set[int]:
    """Jobs with another one on any of their nodes: what those do as a whole is not theirs alone."""
    holding = [job for job in queue.values() if job.state in ALLOCATED_STATES]
    on = Counter(node for job in holding for node in job.nodes)
    return {job.job_id for job in holding if any(on[node] > 1 for node in job.nodes)}


def _to_tell(item: _WatchedJob, episode: Episode[Verdict]) -> JobVerdict:
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
    """Look until `stop` is set, at SHARE of a core at most; a look that fails is tried again."""
    outage = OutageLog(
        log, "running jobs could not be checked: %s", clock, over="running jobs are checked again"
    )
    while not stop.wait(LOOK_S):
        began = time.thread_time()
        try:
            watch.look()
            show(watch.shown)
            outage.worked()
        except Exception as error:  # what cannot be read, or a database that is away
            outage.failed(error)
        took_s = time.thread_time() - began
        stop.wait(max(0.0, took_s / SHARE - LOOK_S))
