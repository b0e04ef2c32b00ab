"""Watch trials, in which two jobs share a GPU although their speeds together are not known yet.

colocation/trials.py decides which jobs may share for a trial. This module adds up the time that each running
job has lost to its co-runners, because the guaranteed slowdown applies to whole runs. Until the speeds are
measured, the whole time of a trial counts as lost. Durations are read from the monotonic clock, because the
wall clock can be set.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.trials import TrialRules
from slurm_gpu.controller.colocation.guard import SETTLES_S, measured_after_s
from slurm_gpu.controller.colocation.job_history import CorunHistory, RunKey
from slurm_gpu.controller.colocation.store import ColocationStore

log = logging.getLogger("slurm-gpuctld")

Together = Sequence[tuple[RunKey, CorunHistory]]

# Time between two queries for the utilisation of running jobs.
INQUIRE_EVERY_S = 10.0
# A node sends the values of its jobs within 80 s after the first query, and then every 20 s (docs/api.md).
_FIRST_VALUES_S = 80.0
_NEXT_VALUES_S = 20.0
# A trial without a measurement ends this long before a job reaches the lost time that it can tolerate. The
# margin covers a cycle, the requeue and, after a restart, the wait for the first answers.
_MARGIN_S = 15.0
_FIRST_ANSWERS_S = 10.0


def trial_s(store: ColocationStore, keys: Sequence[str]) -> float:
    """Return the longest time until the speeds of jobs with these keys are measured; math.inf if never."""
    measured_s = max(measured_after_s(store.profiles.get(key)) for key in keys)
    return INQUIRE_EVERY_S + max(measured_s + _NEXT_VALUES_S, INQUIRE_EVERY_S + _FIRST_VALUES_S)


@dataclass(slots=True)
class RunningTrial:
    """A trial of two jobs."""

    runs: tuple[RunKey, ...]
    """The jobs in order of arrival."""
    keys: tuple[str, ...]
    longest_s: float
    """The time within which the speeds should be measured."""
    since_s: float | None
    """The wall-clock time from which utilisation reflects both jobs; None if this process saw the start."""
    elapsed_s: float = 0.0
    watched_s: float = 0.0
    """The part of `elapsed_s` that this process observed."""
    is_over: bool = False
    """Whether a job had to leave the GPU; the job stays if Slurm refuses to requeue it."""

    def __str__(self) -> str:
        first, second = (run.job_id for run in self.runs)
        return f"trial of job {second} with job {first}"


class TrialWatch:
    """Tracks the running trials, and the time that each running job has lost to its co-runners."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s: float | None = None
        self._groups: dict[tuple[RunKey, ...], tuple[str, ...]] = {}
        """The keys of the jobs on each GPU."""
        self.running: dict[tuple[RunKey, ...], RunningTrial] = {}
        self.lost_s: dict[RunKey, float] = {}
        self._unmeasured: set[frozenset[str]] = set()
        """Pairs of keys whose trial ended without a measurement."""

    def forget(self) -> None:
        """Drop all state, because jobs are no longer observed."""
        self._seen_s = None
        self._groups = {}
        self.running.clear()
        self.lost_s = {}

    @property
    def not_tried(self) -> frozenset[frozenset[str]]:
        """Return the pairs of keys for which a trial is running, or has ended without a measurement."""
        return frozenset(self._unmeasured | {frozenset(trial.keys) for trial in self.running.values()})

    @property
    def since_s(self) -> dict[RunKey, float]:
        """Return, for each job in a trial older than this process, the time from which utilisation counts."""
        return {
            run: trial.since_s
            for trial in self.running.values()
            if trial.since_s is not None
            for run in trial.runs
        }

    def update(
        self, groups: Collection[Together], running: Collection[RunKey], store: ColocationStore, wall_s: float
    ) -> None:
        """Add the time since the last call; end trials whose jobs no longer share or whose speeds are known.

        `groups` contains the jobs on each GPU in order of arrival, without suspended jobs; `running` contains
        all running jobs.
        """
        now_s = self._clock.monotonic()
        is_first, passed_s = self._seen_s is None, now_s - (now_s if self._seen_s is None else self._seen_s)
        self._seen_s = now_s
        known, before = self.lost_s, self._groups
        self.lost_s = {run: known.get(run, store.lost_s.get(run, 0.0)) for run in running}
        self._groups = {
            tuple(run for run, _ in group): tuple(one.key for _, one in group) for group in groups
        }
        for runs, keys in self._groups.items():
            trial = self.running.get(runs)
            if trial is not None:
                trial.watched_s += passed_s
                self._add(trial, passed_s)
            elif _is_unmeasured(keys, store):
                newest_s = max(run.start_s for run in runs)
                since_s = newest_s + SETTLES_S if is_first else None
                trial = self.running[runs] = RunningTrial(runs, keys, trial_s(store, keys), since_s)
                if not known.keys() >= set(runs):
                    self._add(trial, max(0.0, wall_s - newest_s))
            elif runs in before:
                for at, run in enumerate(runs):
                    self.lost_s[run] += passed_s * (1 - store.speed(keys[at], keys[:at] + keys[at + 1 :]))
        for runs, trial in list(self.running.items()):
            if runs in self._groups and not store.is_measured(trial.keys):
                continue
            if not trial.is_over:
                is_together = runs in self._groups
                why = "other jobs provided the speeds" if is_together else "the jobs no longer share a GPU"
                log.info("%s ended after %.0f s: %s", trial, trial.elapsed_s, why)
            self.end(trial, store)
        store.keep_lost(self.lost_s.keys())

    def end(self, trial: RunningTrial, store: ColocationStore) -> None:
        """End a trial; subtract from the lost time the progress implied by the measured speeds."""
        del self.running[trial.runs]
        for run, key, other in zip(trial.runs, trial.keys, reversed(trial.keys), strict=True):
            if run in self.lost_s:
                if (key, other) in store.speeds:
                    done_s = trial.elapsed_s * store.speed(key, (other,))
                    self.lost_s[run] = max(0.0, self.lost_s[run] - done_s)
                store.lost(run, self.lost_s[run])

    def must_end(self, trial: RunningTrial, store: ColocationStore, cap: float) -> bool:
        """Return whether one of the jobs cannot tolerate a longer trial without a measurement.

        If the trial fails, the job that arrived last restarts, so this job is checked only after `longest_s`.
        """
        if trial.is_over or trial.watched_s < _FIRST_ANSWERS_S:
            return False
        rules = TrialRules(cap)
        stays = list(zip(trial.runs, trial.keys, reversed(trial.keys), strict=True))
        for run, key, other in stays if trial.elapsed_s >= trial.longest_s else stays[:-1]:
            alone = store.profiles.get(key)
            before_s = self.lost_s[run] - trial.elapsed_s
            low = store.prediction(key, other, cap).lower
            if alone is None or not rules.can_bear(
                Member(run.job_id, 0, alone.alone_s, ran_s=before_s), trial.elapsed_s + _MARGIN_S, low
            ):
                return True
        return False

    def failed(self, trial: RunningTrial, *, is_measured: bool) -> None:
        """Record that a job must leave; without a measurement, start no more trials for these keys."""
        trial.is_over = True
        if not is_measured:
            self._unmeasured.add(frozenset(trial.keys))

    def _add(self, trial: RunningTrial, seconds: float) -> None:
        trial.elapsed_s += seconds
        for run in trial.runs:
            self.lost_s[run] += seconds


def _is_unmeasured(keys: Sequence[str], store: ColocationStore) -> bool:
    """Return whether the keys are a pair with known profiles and unknown speeds."""
    return len(keys) == 2 and all(key in store.profiles for key in keys) and not store.is_measured(keys)
