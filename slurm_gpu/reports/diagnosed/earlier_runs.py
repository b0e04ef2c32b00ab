"""Read the clocks of earlier runs that are comparable to a given run."""

from __future__ import annotations

import math
from itertools import islice

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.verdicts.job_series import series_of_timelines
from slurm_gpu.diagnose.history import usual_clock
from slurm_gpu.wire.answers.runs import Run

_MOST_RUNS = 10


def earlier_clocks(database: DatabaseClient, run: Run) -> list[float]:
    """Return the usual SM clocks of the last completed runs of the same user, application and GPU model.

    There is one clock per run, as a fraction of the maximum; none if the application is unknown.
    """
    if run.app is None or run.gpu_type is None:
        return []
    earlier = database.all_runs(
        user=run.user,
        states=("COMPLETED",),
        app=run.app,
        gpu_type=run.gpu_type,
        until_s=run.submit_s,
        limit=_MOST_RUNS,
    )
    found = []
    for past in islice(earlier, _MOST_RUNS):
        if past.submit_s >= run.submit_s:
            continue
        details = [item for item in database.run(past.id) if item.submit_s == past.submit_s]
        courses = [item for item in database.timelines(past.id) if item.submit_s == past.submit_s]
        for detail, course in zip(details, courses, strict=False):
            found.append(usual_clock(series_of_timelines(detail, course.devices or ())))
    return [clock for clock in found if math.isfinite(clock)]
