"""Draw queues for training, each with a different mix of the available applications."""

from __future__ import annotations

import numpy as np

from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces
from slurm_gpu.colocation.learned.episodes import Queues

FEWEST_JOBS, MOST_JOBS = 10, 36
# Minimum length of a job, as a fraction of its application's profile; the maximum is twice the profile.
_SHORTEST = 0.1
_LONGEST = 2.0


def draw_queues(beliefs: ApplicationPlaces, rng: np.random.Generator, n: int) -> Queues:
    """Draw queues of jobs whose applications have places in `beliefs`.

    Queues differ in the number of jobs, and in the number of applications, which ranges from two to all. In
    one third of the queues, all jobs are as long as their profiles. In the other queues, each length is
    multiplied by a factor that is log-uniform within bounds. In one quarter of the queues, jobs arrive while
    others run. In the other queues, all jobs wait from the beginning.
    """
    n_applications = len(beliefs.applications)
    seconds = np.array([beliefs.profiles[one].seconds for one in beliefs.applications])
    place = np.full((n, MOST_JOBS), beliefs.empty, dtype=np.intp)
    work_s = np.ones((n, MOST_JOBS), dtype=np.float32)
    submit_s = np.zeros((n, MOST_JOBS), dtype=np.float32)
    for row in range(n):
        n_jobs = int(rng.integers(FEWEST_JOBS, MOST_JOBS + 1))
        kinds = rng.permutation(n_applications)[
            : int(rng.integers(min(2, n_applications), n_applications + 1))
        ]
        drawn = kinds[rng.integers(0, len(kinds), n_jobs)]
        factor = np.ones(n_jobs)
        if rng.random() < 2 / 3:
            factor = np.exp(rng.uniform(np.log(_SHORTEST), np.log(_LONGEST), n_jobs))
        place[row, :n_jobs] = drawn
        work_s[row, :n_jobs] = seconds[drawn] * factor
        if rng.random() < 1 / 4:
            span_s = float(work_s[row, :n_jobs].sum()) * rng.uniform(0.1, 0.6)
            comes_s = np.sort(rng.uniform(0, span_s, n_jobs))
            submit_s[row, :n_jobs] = comes_s - comes_s[0]
    return Queues(place, work_s, submit_s)
