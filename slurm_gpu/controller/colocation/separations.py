"""Separate jobs that must stop sharing a GPU, store their measured speeds, and conclude trials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.guard import (
    CoRunner,
    Parting,
    exceeding,
    observed,
    parting,
    unmeasured,
)
from slurm_gpu.controller.colocation.job_history import CorunProgress
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.colocation.terminations import Terminations
from slurm_gpu.controller.colocation.trial_watch import RunningTrial, TrialWatch

log = logging.getLogger("slurm-gpuctld")


class Separations:
    """Checks the jobs on each GPU in each cycle."""

    def __init__(self, terminations: Terminations, trials: TrialWatch) -> None:
        self._terminations, self._trials = terminations, trials

    def check(
        self,
        together: Sequence[CoRunner],
        slowdown: float | None,
        store: ColocationStore,
        agreed: Mapping[int, Agreed],
        progress: Callable[[], Mapping[int, CorunProgress]],
    ) -> None:
        """Separate the jobs on one GPU if they must stop sharing.

        `together` contains the jobs on the GPU in order of arrival. `progress` returns the progress of all
        running jobs, by job ID, at the speeds in the store.
        """
        ends = parting(together, slowdown, store)
        trial = self._trials.running.get(tuple(one.run for one in together))
        if ends is not None:
            is_over = self._send_back(ends, together, _evidence(together, slowdown, store), agreed)
            # A job that could not be requeued is detected again in each cycle.
            if is_over or store.may_meet((ends.slowed, ends.other)):
                _learn(together, store)
                store.part(ends.slowed, ends.other)
            if trial is not None and not trial.is_over:
                self._fail(trial, ends)
        elif trial is not None and slowdown is not None:
            self._conclude(trial, together, slowdown, store, agreed, progress)

    def _conclude(
        self,
        trial: RunningTrial,
        together: Sequence[CoRunner],
        slowdown: float,
        store: ColocationStore,
        agreed: Mapping[int, Agreed],
        progress: Callable[[], Mapping[int, CorunProgress]],
    ) -> None:
        """End a trial when its speeds are measured, or when a job cannot tolerate more lost time."""
        is_measured = all(one.speed is not None for one in together)
        if not is_measured and not self._trials.must_end(trial, store, slowdown):
            return
        evidence = _evidence(together, slowdown, store)
        _learn(together, store)
        ends: Parting | None = unmeasured(together, trial.elapsed_s, slowdown)
        if is_measured:
            self._trials.end(trial, store)
            known = progress()
            ends = exceeding(together, [known[one.run.job_id] for one in together], slowdown, store)
        if ends is not None:
            self._fail(trial, ends)
            self._send_back(ends, together, evidence, agreed)
            return
        log.info(
            "%s succeeded after %.0f s: at speeds of %s, both runs stay within the guaranteed slowdown of %g",
            trial,
            trial.elapsed_s,
            " and ".join(f"{one.speed:.2f}" for one in together),
            slowdown,
        )

    def _fail(self, trial: RunningTrial, ends: Parting) -> None:
        self._trials.failed(trial, is_measured=ends.is_measured)
        log.info("%s failed after %.0f s: %s", trial, trial.elapsed_s, ends.why)

    def _send_back(
        self,
        ends: Parting,
        together: Sequence[CoRunner],
        evidence: Mapping[str, object],
        agreed: Mapping[int, Agreed],
    ) -> bool:
        """Requeue the job that arrived last; return whether the requeue succeeded."""
        others = [agreed[one.run.job_id] for one in together if one.run != ends.newcomer]
        return self._terminations.send_back(
            agreed[ends.newcomer.job_id], others, ends.why, ends.public_why, evidence
        )


def _evidence(
    together: Sequence[CoRunner], slowdown: float | None, store: ColocationStore
) -> dict[str, object]:
    """Return the speeds of jobs that must stop sharing, for the audit event."""
    speeds = [
        {
            "job": run.job_id,
            "key": course.key,
            "predicted": round(store.speed(course.key, course.stretches[-1].others), 3),
            "measured": None if speed is None else round(speed, 3),
        }
        for run, course, speed in together
    ]
    return {"slowdown": slowdown, "speeds": speeds}


def _learn(together: Sequence[CoRunner], store: ColocationStore) -> None:
    """Add the measured speeds of jobs that share a GPU to the store."""
    for _, course, speed in together:
        if speed is not None:
            for other, seen in observed(course, speed, store).items():
                store.ran_with(course.key, other, seen)
