"""Simulate many queues of jobs at once with array operations, for training; each queue has its own GPU.

The model is that of `colocation.simulation`, with simplifications that do not affect learning. Speeds are
means over whole runs, and memory is checked as if all jobs started at once. A job that does not fit returns
to the queue with no work done, and then runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.co_runners import MOST, ApplicationPlaces, Places
from slurm_gpu.colocation.learned.net import Floats

Mask = NDArray[np.bool_]
NO_JOB = -1


@dataclass(frozen=True, slots=True)
class Queues:
    """The jobs of n queues, up to N jobs in each."""

    place: Places
    """(n, N) place of each job's application, padded with the empty place."""
    work_s: Floats
    """(n, N) work of each job, in seconds of running alone."""
    submit_s: Floats
    """(n, N) submit time of each job."""

    def __len__(self) -> int:
        return len(self.place)

    def repeated(self, times: int) -> Queues:
        """Return the queues, each repeated `times` times in a row."""
        return Queues(
            np.repeat(self.place, times, axis=0),
            np.repeat(self.work_s, times, axis=0),
            np.repeat(self.submit_s, times, axis=0),
        )


class Episodes:
    """The state of n queues.

    A player starts jobs in some of the queues; `advance` simulates until the next event.
    """

    def __init__(self, beliefs: ApplicationPlaces, queues: Queues) -> None:
        n, n_jobs = queues.place.shape
        self.beliefs, self.queues = beliefs, queues
        self.now_s = np.zeros(n, dtype=np.float64)
        self.left_s = queues.work_s.astype(np.float32)
        self.done_s = np.zeros((n, n_jobs), dtype=np.float32)
        self.pending = queues.place != beliefs.empty
        """(n, N) whether each job is neither running nor done, including jobs that arrive later."""
        self.running = np.full((n, MOST), NO_JOB, dtype=np.intp)
        """(n, 3) the running jobs, followed by empty entries."""
        self.alone = np.zeros((n, n_jobs), dtype=bool)
        """(n, N) whether each job must run alone because it has run out of memory."""
        self.ran_out = np.zeros(n, dtype=np.intp)
        self.delay = np.zeros(n, dtype=np.float64)
        """(n) DeepRM's cost so far: the sum over all jobs of time in the system ÷ duration alone."""

    def __len__(self) -> int:
        return len(self.now_s)

    @property
    def n_running(self) -> NDArray[np.intp]:
        """Return the number of running jobs in each queue, (n)."""
        return np.asarray((self.running != NO_JOB).sum(axis=1))

    @property
    def waiting(self) -> Mask:
        """Return whether each job is waiting, (n, N)."""
        return np.asarray(self.pending & (self.queues.submit_s <= self.now_s[:, None]))

    @property
    def over(self) -> Mask:
        """Return whether all jobs of each queue are done, (n)."""
        return np.asarray(~self.pending.any(axis=1) & (self.n_running == 0))

    def start(self, episodes: NDArray[np.intp], jobs: NDArray[np.intp]) -> None:
        """Start up to three jobs in each of the given episodes; NO_JOB starts none.

        A GPU runs at most three jobs, including those that are already running.
        """
        before = self.running[episodes]
        wide = np.concatenate([before, jobs], axis=1)
        order = np.argsort(wide == NO_JOB, axis=1, kind="stable")[:, :MOST]
        after = np.take_along_axis(wide, order, axis=1)
        group = self._places(episodes, after)
        speeds = self.beliefs.speeds(group)
        n_after = (after != NO_JOB).sum(axis=1)
        fits = (n_after < 2) | (
            (speeds > 0).sum(axis=1) == n_after if self.beliefs.most > 1 else np.zeros(len(after), bool)
        )
        fits &= (n_after < 2) | self.beliefs.fits(group)
        ok, bad = np.flatnonzero(fits), np.flatnonzero(~fits)
        self.running[episodes[ok]] = after[ok]
        for column in range(jobs.shape[1]):
            started = ok[jobs[ok, column] != NO_JOB]
            self.pending[episodes[started], jobs[started, column]] = False
            out = bad[jobs[bad, column] != NO_JOB]
            self.alone[episodes[out], jobs[out, column]] = True
        self.ran_out[episodes[bad]] += 1

    def _places(self, episodes: NDArray[np.intp], jobs: NDArray[np.intp]) -> Places:
        place = self.queues.place[episodes[:, None], jobs]
        return np.where(jobs == NO_JOB, self.beliefs.empty, place)

    def advance(self, episodes: NDArray[np.intp]) -> None:
        """Advance each episode to the next end or arrival of a job; do nothing if all its jobs are done."""
        jobs = self.running[episodes]
        there = jobs != NO_JOB
        speed = self.beliefs.speeds(self._places(episodes, jobs))
        left = np.where(there, self.left_s[episodes[:, None], jobs], np.float32(np.inf))
        end_s = (left / np.where(there, speed, 1)).min(axis=1).astype(np.float64)
        now_s = self.now_s[episodes]
        coming = self.pending[episodes] & (self.queues.submit_s[episodes] > now_s[:, None])
        next_s = np.where(coming, self.queues.submit_s[episodes], np.inf).min(axis=1) - now_s
        step_s = np.minimum(end_s, next_s)
        step_s = np.where(np.isfinite(step_s), step_s, 0)
        in_system = self.waiting[episodes]
        inverse = 1 / np.maximum(self.queues.work_s[episodes], np.float32(1e-6))
        rate = (in_system * inverse).sum(axis=1)
        rate += np.where(there, np.take_along_axis(inverse, np.maximum(jobs, 0), axis=1), 0).sum(axis=1)
        self.delay[episodes] += rate * step_s
        self.now_s[episodes] = np.where(step_s == next_s, now_s + next_s, now_s + step_s)
        done = (step_s[:, None] * speed).astype(np.float32)
        for column in range(MOST):
            on = np.flatnonzero(there[:, column])
            rows, job = episodes[on], jobs[on, column]
            ends = left[on, column] - done[on, column] <= 1e-4 * self.queues.work_s[rows, job]
            self.left_s[rows, job] = np.where(ends, 0, left[on, column] - done[on, column])
            self.done_s[rows, job] += done[on, column]
            self.running[rows[ends], column] = NO_JOB
        order = np.argsort(self.running[episodes] == NO_JOB, axis=1, kind="stable")
        self.running[episodes] = np.take_along_axis(self.running[episodes], order, axis=1)
