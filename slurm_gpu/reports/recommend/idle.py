"""GPUs that nobody held while jobs of a group waited: evidence that limits kept them waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_gpu.reports.recommend.past import RecordedPast
from slurm_gpu.reports.recommend.waits import Floats, Mask
from slurm_gpu.simulate.cluster import GPU_MGPU


@dataclass(frozen=True, slots=True)
class IdleWhileWaiting:
    """As recorded, of one group."""

    waited_h: float
    """For how long at least one of its jobs with GPUs waited."""
    gpus: float
    """How many GPUs of the cluster, as it is now, nobody held meanwhile: the mean; NaN where none waited."""


def idle_while_waiting(past: RecordedPast, groups: Mapping[str, Mask]) -> Mapping[str, IdleWhileWaiting]:
    """By group; `groups` tell which jobs are theirs."""
    mgpu = np.array([job.request.mgpu for job in past.jobs], np.float64)
    came_s = np.array([run.eligible_s for run in past.runs], np.float64)
    start_s, end_s = (
        np.array([np.inf if at_s is None else at_s for at_s in times], np.float64)
        for times in ([run.start_s for run in past.runs], [run.end_s for run in past.runs])
    )
    times = np.unique(np.concatenate([came_s, start_s, end_s]))
    times = times[np.isfinite(times)]
    lasts_s = np.diff(times, append=times[-1:])
    held = _level(times, start_s, end_s, mgpu)
    idle = np.maximum(past.cluster.total_gpus - held / GPU_MGPU, 0.0)
    found = {}
    for name, mask in groups.items():
        mine = mask & (mgpu > 0)
        waiting = _level(times, came_s[mine], start_s[mine], np.ones(int(mine.sum()))) > 0
        waited_s = lasts_s[waiting].sum()
        mean = float(idle[waiting] @ lasts_s[waiting] / waited_s) if waited_s else float("nan")
        found[name] = IdleWhileWaiting(float(waited_s) / 3600, mean)
    return found


def _level(times: Floats, from_s: Floats, to_s: Floats, amount: Floats) -> Floats:
    """From each of `times` to the next: the sum of what there is from `from_s` to before `to_s`."""
    change = np.zeros(len(times) + 1)
    np.add.at(change, np.searchsorted(times, from_s), amount)
    np.subtract.at(change, np.searchsorted(times, to_s), amount)
    return np.cumsum(change)[:-1]
