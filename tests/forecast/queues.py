"""Runs of a synthetic site: a few kinds of jobs, each with its own distribution of waits."""

import numpy as np

from slurm_gpu.forecast.queue import Runs

DAY_S = 86400.0
NOW_S = 1_700_000_000.0


def made_up_runs(n: int = 500, days: float = 8.0, seed: int = 0, until_s: float = NOW_S) -> Runs:
    """Return n runs over the last `days`. Jobs with GPUs wait about 30 times as long; some are cancelled."""
    rng = np.random.default_rng(seed)
    eligible_s = np.sort(until_s - days * DAY_S * rng.random(n))
    gpus = np.where(rng.random(n) < 0.3, rng.integers(1, 5, n), 0).astype(float)
    limit_s = rng.choice([3600.0, 86400.0], n)
    wait_s = rng.lognormal(np.log(np.where(gpus > 0, 18000.0, 600.0)), 0.5)
    start_s = eligible_s + wait_s
    cancelled = rng.random(n) < 0.05
    end_s = np.where(cancelled, eligible_s + wait_s / 2, start_s + limit_s * rng.random(n))
    return Runs(
        eligible_s=eligible_s,
        start_s=np.where(cancelled, np.nan, start_s),
        end_s=end_s,
        cores=1 + 8 * gpus,
        memory_mib=4096.0 * (1 + gpus),
        gpus=gpus,
        nodes=np.ones(n),
        limit_s=limit_s,
        account=rng.choice(["astro", "bio", "chem"], n),
        partition=np.where(gpus > 0, "gpu", "cpu"),
    )


def with_other_future(runs: Runs, now_s: float) -> Runs:
    """Return the runs known at `now_s` with a different future: new jobs removed, other starts and ends."""
    here = runs[runs.eligible_s <= now_s]
    rng = np.random.default_rng(99)
    columns = {name: getattr(here, name).copy() for name in Runs.__slots__}
    for name in ("start_s", "end_s"):
        later = ~(columns[name] <= now_s)
        other = now_s + 1 + 1e6 * rng.random(len(here))
        columns[name] = np.where(later, np.where(rng.random(len(here)) < 0.5, other, np.nan), columns[name])
    return Runs(**columns)
