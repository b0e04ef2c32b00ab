"""Place the jobs that agreed to share, monitor them, and separate jobs when sharing fails.

No job can wait indefinitely: job_submit.lua sets a begin time, at which the job starts by itself. Failed
actions are retried in the next cycle; the affected jobs may start later, or alone, but are never lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.controller.colocation import status
from slurm_gpu.controller.colocation import store as stores
from slurm_gpu.controller.colocation.agreed import Agreed, agreed_among
from slurm_gpu.controller.colocation.database_queries import DatabaseQueries
from slurm_gpu.controller.colocation.free_shards import SharedNode, SharersOnGpu, rooms, shares_of
from slurm_gpu.controller.colocation.guard import CoRunner, since_s, speed_of
from slurm_gpu.controller.colocation.job_history import CorunProgress
from slurm_gpu.controller.colocation.learning import Learning
from slurm_gpu.controller.colocation.pair_fit import PairFit
from slurm_gpu.controller.colocation.plan import StartAction, WaitingSharer, choose
from slurm_gpu.controller.colocation.separations import Separations
from slurm_gpu.controller.colocation.serving import Planners
from slurm_gpu.controller.colocation.status import Started
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.colocation.terminations import Terminations
from slurm_gpu.controller.colocation.trial_watch import INQUIRE_EVERY_S, Together, TrialWatch
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of
from slurm_gpu.controller.snapshot.share_table import ShareTable
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.policy.lua.installed import ColocationInForce
from slurm_gpu.slurm.client import QueuedJob, SlurmClient
from slurm_gpu.slurm.job_changes import SharedJobClient
from slurm_gpu.slurm.queue import CountedJob, JobPhase

log = logging.getLogger("slurm-gpuctld")

_CPU_SHARE = 0.02
# Maximum share of a core while a job waits for its place, since GPUs are idle meanwhile, or while a trial
# runs, since it must end in time.
_CPU_SHARE_IN_A_HURRY = 0.10
# Time after which a job that was assigned a place but has not started may start anywhere.
_LANDS_WITHIN_S = 20.0
# Time before the begin time of an unplaced job at which it gets a GPU of its own.
_LAST_CALL_S = 8.0
_MAX_STARTED = 20


@dataclass(slots=True)
class _Landing:
    """A job that is being started."""

    act: StartAction
    at_s: float


class ColocationReconciler(Duty):
    """Places jobs that share GPUs, monitors these jobs and learns from their runs.

    `table` provides the snapshot's data.
    """

    def __init__(
        self,
        client: SlurmClient,
        control: SharedJobClient,
        queries: DatabaseQueries,
        pair_fit: PairFit,
        planners: Planners,
        terminations: Terminations,
        run_directory: Path,
        clock: Clock,
        cpu: Callable[[], float],
    ) -> None:
        super().__init__(
            clock,
            "jobs that share GPUs could not be placed: %s",
            "jobs that share GPUs are placed again",
            cpu=cpu,
        )
        self._client, self._control, self._queries, self._pair_fit = client, control, queries, pair_fit
        self._planners, self._terminations = planners, terminations
        self._path = run_directory / status.FILE_NAME
        self._store: ColocationStore | None = None
        self._store_path: Path | None = None
        self._owner_uid = 0
        self._learning: Learning | None = None
        self._shards_per_gpu: int | None = None
        self._trials = TrialWatch(clock)
        self._separations = Separations(terminations, self._trials)
        self._landing: dict[int, _Landing] = {}
        self._known: dict[int, Sequence[SharersOnGpu]] = {}
        """The last known shards of each job."""
        self._last: list[Started] = []
        self._inquire_at_s = 0.0
        self._refused = OutageLog(log, "%s", clock)
        self._unwritten = OutageLog(
            log,
            "jobs that share GPUs could not be published: %s; slurm-gpu explain does not show them",
            clock,
            over="jobs that share GPUs are published again",
        )
        self._works = False

    def table(self) -> ShareTable | None:
        """Return the table for job_submit.lua; None while sharing is unavailable."""
        if not self._works or self._store is None or self._shards_per_gpu is None:
            return None
        return self._store.table(self._shards_per_gpu)

    def prepare(self, view: QueueView) -> bool:
        """Drop all state if slurmctld is not active here or the policy does not configure co-location.

        Return whether there is work.
        """
        if view.answered and (view.policy.colocation is None or not view.in_charge):
            self._works = False
            self._forget()
        return view.answered and view.policy.colocation is not None and view.in_charge

    def work(self, view: QueueView) -> None:
        """Monitor the jobs that share GPUs, and place waiting jobs."""
        assert view.policy.colocation is not None
        self._works = False
        self._reconcile(view.jobs, view.policy.colocation, view.facts)
        self._works = True

    def _reconcile(self, jobs: Sequence[CountedJob], policy: ColocationInForce, facts: CountingFacts) -> None:
        now_s = self._clock.wall()
        self._shards_per_gpu = facts.shards_per_gpu
        store, learning = self._read()
        agreed = agreed_among(jobs)
        waits = any(one.waits_for_its_place(now_s) for one in agreed.values())
        self._cpu_share = _CPU_SHARE_IN_A_HURRY if waits or self._trials.running else _CPU_SHARE
        shared = [one for one in agreed.values() if one.shards is not None]
        if not agreed and not learning.running and not learning.ended:
            self._trials.forget()
            self._publish(policy, now_s, {}, agreed, store)
            return
        queued = self._queued(jobs, shared)
        sharers = [one.job.job_id for one in shared]
        found = rooms(self._client.nodes(), queued, sharers, self._known) if shared else {}
        self._known = {
            job.job_id: shares_of(job, facts.shards_per_gpu or 0) or self._known.get(job.job_id, ())
            for job in queued
        }
        on_gpu = {job: gpu.sharers for room in found.values() for gpu in room.gpus for job in gpu.sharers}
        alone = {one.job.job_id: [one.job.job_id] for one in agreed.values() if one.shards is None}
        learning.update(agreed, {**on_gpu, **alone}, now_s)
        self._record_missed(learning, agreed)
        self._settle(learning, agreed, store)
        self._pair_fit.refresh(store, Counter(one.key for one in agreed.values()), policy.slowdown)
        together = _together(learning, found, agreed)
        if policy.mode == "enforce" and policy.slowdown is not None:
            self._trials.update(together, learning.running, store, now_s)
        else:
            self._trials.forget()
        self._inquire(learning, store, together, policy, now_s, agreed)
        self._land(found, agreed, facts, now_s)
        if policy.mode == "enforce":
            self._place(found, agreed, policy, facts, now_s)
            self._start_alone(agreed, now_s)
        if store.is_changed and self._store_path is not None:
            stores.write(self._store_path, store, now_s, self._owner_uid)
        self._publish(policy, now_s, found, agreed, store)

    def _forget(self) -> None:
        """Drop the store and all observations, because another process may now write the store."""
        if self._store is not None:
            self._store = self._learning = None
            self._trials.forget()
            self._landing.clear()
            self._known = {}
            self._pair_fit.forget()

    def _read(self) -> tuple[ColocationStore, Learning]:
        if self._store is None or self._learning is None:
            settings = self._client.settings()
            self._owner_uid = settings.slurm_user_uid
            self._store_path = stores.path_of(settings)
            self._store = stores.read(self._store_path)
            self._learning = Learning(self._store, self._clock.wall())
        return self._store, self._learning

    def _queued(self, jobs: Sequence[CountedJob], shared: Sequence[Agreed]) -> Sequence[QueuedJob]:
        """Return the jobs that use GPUs and the positions of these GPUs; () if no job agreed to share."""
        if not shared:
            return ()
        # If Slurm does not account for GPUs, they are not in its total, so the request is also checked.
        holding = [
            job.job_id
            for job in jobs
            if job.phase is not JobPhase.PENDING
            and any(
                "gres" in text for text in (job.tres, job.per_job, job.per_node, job.per_socket, job.per_task)
            )
        ]
        return self._client.jobs(holding) if holding else ()

    def _record_missed(self, learning: Learning, agreed: Mapping[int, Agreed]) -> None:
        """Record jobs that started and ended since the last cycle."""
        for job_id, landing in self._landing.items():
            one = agreed.get(job_id)
            if one is not None and one.job.phase is JobPhase.ENDED:
                learning.missed(one, [agreed[job].key for job in landing.act.co_runners if job in agreed])

    def _settle(self, learning: Learning, agreed: Mapping[int, Agreed], store: ColocationStore) -> None:
        """Requeue each job that failed while sharing, but only once, if jobs with its key completed alone."""
        if not learning.over:
            return
        states = {job.job_id: job for job in self._client.jobs([key.job_id for key in learning.over])}
        failed = learning.settle({job_id: job.state for job_id, job in states.items()})
        for key, course in failed.items():
            one = agreed.get(key.job_id)
            if one is None or course.key not in store.profiles or states[key.job_id].restarts > 0:
                continue
            others = course.stretches[-1].others
            for other in others:
                store.part(course.key, other)
            store.needed_more(course.key)
            self._terminations.send_back(
                one,
                (),
                f"it failed next to {', '.join(others)}, and jobs like it do not fail alone",
                "it failed next to another job, probably out of memory, and jobs like it do not fail alone",
                {"keys": list(others)},
            )

    def _inquire(
        self,
        learning: Learning,
        store: ColocationStore,
        together: Sequence[Together],
        policy: ColocationInForce,
        now_s: float,
        agreed: Mapping[int, Agreed],
    ) -> None:
        since = {run: one for run, course in learning.running.items() if (one := since_s(course)) is not None}
        since.update(self._trials.since_s)
        answers, used = self._queries.answers(), {}
        if answers is not None:
            learning.learn(answers.ran, now_s)
            # A job whose co-runners have changed has not been measured with the new co-runners yet.
            used = {
                run: one
                for run, one in answers.utilisation.items()
                if run in learning.running and answers.since_s[run] == since.get(run)
            }
        if policy.mode == "enforce":
            for here in together:
                self._separations.check(
                    [
                        CoRunner(run, course, speed_of(course, used[run], store) if run in used else None)
                        for run, course in here
                    ],
                    policy.slowdown,
                    store,
                    agreed,
                    lambda: self._progress(learning, store, now_s),
                )
        if self._queries.is_free and self._clock.monotonic() >= self._inquire_at_s:
            self._inquire_at_s = self._clock.monotonic() + INQUIRE_EVERY_S
            self._queries.ask(set(learning.ended), since)

    def _land(
        self,
        found: Mapping[str, SharedNode],
        agreed: Mapping[int, Agreed],
        facts: CountingFacts,
        now_s: float,
    ) -> None:
        """Count the resources of starting jobs as used at the places assigned to these jobs."""
        for job_id, landing in list(self._landing.items()):
            one = agreed.get(job_id)
            if one is None or one.job.phase is not JobPhase.PENDING:
                del self._landing[job_id]
            elif now_s - landing.at_s > _LANDS_WITHIN_S:
                del self._landing[job_id]
                log.info("job %d did not start at its assigned place", job_id)
            elif landing.act.place.node in found:
                amounts = amounts_of(one.job, facts)
                found[landing.act.place.node].take(
                    landing.act.place.position, job_id, landing.act.shards, amounts.cpus, amounts.mib
                )

    def _place(
        self,
        found: Mapping[str, SharedNode],
        agreed: Mapping[int, Agreed],
        policy: ColocationInForce,
        facts: CountingFacts,
        now_s: float,
    ) -> None:
        store, learning = self._read()
        waiting = []
        for one in agreed.values():
            if one.waits_for_its_place(now_s) and one.job.job_id not in self._landing:
                least = store.shards(one.key, one.of or 1)
                amounts = amounts_of(one.job, facts)
                if least is not None and one.of == self._shards_per_gpu:
                    waiting.append(WaitingSharer(one, least, amounts.cpus, amounts.mib))
        running = self._progress(learning, store, now_s)
        for job_id in self._landing:
            if job_id in agreed and agreed[job_id].key in store.profiles:
                running[job_id] = CorunProgress(
                    agreed[job_id].key, 0.0, store.profiles[agreed[job_id].key].alone_s
                )
        waiting.sort(key=lambda one: (one.agreed.job.submit_s or 0, one.agreed.job.job_id))
        for partitions in sorted({one.agreed.job.partition for one in waiting}):
            named = frozenset(partitions.split(","))
            keys = {one.agreed.key for one in waiting} | {one.key for one in running.values()}
            acts = choose(
                now_s,
                {name: room for name, room in found.items() if named.intersection(room.node.partitions)},
                [one for one in waiting if one.agreed.job.partition == partitions],
                running,
                store,
                self._planners.server(partitions, policy, store, sorted(keys)),
                frozenset(landing.act.place.node for landing in self._landing.values()),
                self._not_tried(agreed),
            )
            for act in acts:
                self._start(act, agreed, store, now_s)

    def _progress(self, learning: Learning, store: ColocationStore, now_s: float) -> dict[int, CorunProgress]:
        """Return the progress of each running job, by job ID."""
        found = {}
        for run, course in learning.running.items():
            done_s = course.done_s(now_s, store.speed)
            profile = store.profiles.get(course.key)
            left_s = profile.alone_s - done_s if profile else 0.0
            lost_s = self._trials.lost_s.get(run, 0.0)
            found[run.job_id] = CorunProgress(course.key, done_s, left_s, lost_s, course.is_whole)
        return found

    def _not_tried(self, agreed: Mapping[int, Agreed]) -> frozenset[frozenset[str]]:
        """Return the pairs of keys for which no trial may start, including pairs about to be tried."""
        starting = {
            frozenset(agreed[job].key for job in (job_id, *landing.act.co_runners) if job in agreed)
            for job_id, landing in self._landing.items()
            if landing.act.is_trial
        }
        return self._trials.not_tried | starting

    def _start(
        self, act: StartAction, agreed: Mapping[int, Agreed], store: ColocationStore, now_s: float
    ) -> None:
        one = agreed[act.job_id]
        co_runners = [agreed[job].key for job in act.co_runners if job in agreed]
        try:
            self._control.start(act.job_id, act.place.node, f"{one.gres}{act.shards}")
        except SlurmError as error:  # for example, the job was cancelled meanwhile
            self._refused.failed(f"job {act.job_id} was not started: {error}")
            return
        self._landing[act.job_id] = _Landing(act, now_s)
        speed = store.speed(one.key, co_runners)
        where = f"GPU {act.place.position} of {act.place.node}"
        how = (
            f"with {', '.join(co_runners)}, at {speed:.2f} of its speed alone"
            if co_runners
            else "alone, for now"
        )
        if act.is_trial:
            how += "; this is a trial, because their speeds together are unmeasured"
        log.info("job %d starts on %s, %s", act.job_id, where, how)
        self._last.append(
            Started(int(now_s), act.job_id, *act.place, list(act.co_runners), speed, act.is_trial)
        )
        del self._last[:-_MAX_STARTED]

    def _start_alone(self, agreed: Mapping[int, Agreed], now_s: float) -> None:
        """Give a job a GPU of its own if its wait ended before it was placed.

        The wait also ends if a job is requeued, or if slurm-gpuctld placed the job and was then killed. The
        node on which a job was placed may no longer exist.
        """
        for one in agreed.values():
            job = one.job
            if job.phase is not JobPhase.PENDING or one.is_alone or job.job_id in self._landing:
                continue
            if (job.start_s or 0) - now_s <= _LAST_CALL_S:
                try:
                    self._control.unpin(job.job_id, f"{one.gres}{one.of}")
                except SlurmError as error:  # for example, the job has just started
                    self._refused.failed(f"job {job.job_id} was not started: {error}")
                    continue
                log.info("job %d was not placed and gets a GPU of its own", job.job_id)

    def _publish(
        self,
        policy: ColocationInForce,
        now_s: float,
        found: Mapping[str, SharedNode],
        agreed: Mapping[int, Agreed],
        store: ColocationStore,
    ) -> None:
        try:
            status.write(
                self._path,
                now_s,
                policy.mode,
                self._shards_per_gpu,
                found,
                agreed,
                store,
                self._last,
                self._planners.serving,
                self._trials.running,
            )
            self._unwritten.worked()
        except OutsideError as error:
            self._unwritten.failed(error)


def _together(
    learning: Learning, found: Mapping[str, SharedNode], agreed: Mapping[int, Agreed]
) -> list[Together]:
    """Return the jobs on each GPU in order of arrival, without suspended jobs."""
    courses = {
        run.job_id: (run, course)
        for run, course in learning.running.items()
        if not agreed[run.job_id].job.is_suspended
    }
    return [
        [courses[job] for job in gpu.sharers if job in courses]
        for room in found.values()
        for gpu in room.gpus
    ]
