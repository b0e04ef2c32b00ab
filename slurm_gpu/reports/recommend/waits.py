"""Compare recorded and modelled waits of groups, and find GPUs that were free during waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.reports.recommend.past import RecordedPast
from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.text.units import counted

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ALL = "all jobs"
# Groups with fewer jobs than this are not assessed.
LEAST_JOBS = 30
# Waits up to this length are treated as equal to each other.
NO_MATTER_S = 300.0
# The largest allowed factor between the modelled and the recorded mean wait.
MEAN_WITHIN = 1.5
# The required share of jobs whose modelled wait is within a factor of two.
WITHIN_2X = 0.5


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """The waits of one group of jobs in one run of the model, in hours."""

    jobs: int
    mean_h: float
    median_h: float
    p90_h: float
    user_h: float
    """The median of the mean waits of the group's users."""
    by_limits_h: float
    """The part of the mean wait that limits caused."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The recorded and modelled waits of the same jobs under the same limits."""

    jobs: int
    recorded_h: float
    modelled_h: float
    within_2x: float
    """The share of jobs whose modelled wait is within a factor of two of the recorded wait."""

    @property
    def enough(self) -> bool:
        """Return whether there are enough jobs for a comparison."""
        return self.jobs >= LEAST_JOBS

    @property
    def doubt(self) -> str | None:
        """Return why the modelled means are not reliable, or None if they are reliable."""
        if not self.enough:
            return f"only {counted(self.jobs, 'job')} to compare with the model; {LEAST_JOBS} are required"
        if not self.mean_is_alike:
            return (
                "the model does not reproduce the recorded waits "
                f"(mean wait {self.modelled_h:.2f} h, recorded {self.recorded_h:.2f} h)"
            )
        return None

    @property
    def mean_is_alike(self) -> bool:
        """Return whether the mean waits agree within a factor of MEAN_WITHIN."""
        return bool(
            _alike(np.array([self.recorded_h * 3600]), np.array([self.modelled_h * 3600]), MEAN_WITHIN)[0]
        )


def groups_of(past: RecordedPast, policy: PolicyInForce) -> Mapping[str, Mask]:
    """Return masks of the compared jobs, for each group with a modelled rule and for all jobs."""
    groups: dict[str, Mask] = {ALL: past.judged}
    for rule in policy.rules:
        group = rule.group
        if group.name not in groups:
            mine = [group.matches(run.uid, run.account, run.qos, run.partition) for run in past.runs]
            groups[group.name] = past.judged & np.array(mine, dtype=np.bool_)
    return groups


def waits_of(wait_s: Floats, limited_s: Floats, uid: NDArray[np.int64], mask: Mask) -> GroupWaits:
    """Return the waits of the group of jobs in `mask`."""
    waits = wait_s[mask]
    if not len(waits):
        return GroupWaits(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    _, user = np.unique(uid[mask], return_inverse=True)
    by_user = np.bincount(user, waits) / np.bincount(user)
    median, p90 = np.quantile(waits, (0.5, 0.9)) / 3600
    return GroupWaits(
        len(waits),
        float(waits.mean()) / 3600,
        float(median),
        float(p90),
        float(np.median(by_user)) / 3600,
        float(limited_s[mask].mean()) / 3600,
    )


def compare(recorded_s: Floats, modelled_s: Floats, mask: Mask) -> Reproduction:
    """Return the agreement between the recorded and modelled waits of one group."""
    recorded, modelled = recorded_s[mask], modelled_s[mask]
    if not len(recorded):
        return Reproduction(0, 0.0, 0.0, 0.0)
    return Reproduction(
        len(recorded),
        float(recorded.mean()) / 3600,
        float(modelled.mean()) / 3600,
        float(_alike(recorded, modelled, 2.0).mean()),
    )


def _alike(one: Floats, other: Floats, factor: float) -> Mask:
    one, other = np.maximum(one, NO_MATTER_S), np.maximum(other, NO_MATTER_S)
    return (one <= factor * other) & (other <= factor * one)


@dataclass(frozen=True, slots=True)
class IdleWhileWaiting:
    """The GPUs that were free while jobs of a group waited; many free GPUs suggest waits caused by limits."""

    waited_h: float
    """Number of hours during which at least one of the group's jobs with GPUs waited."""
    gpus: float
    """Mean number of free GPUs of the current cluster while a job waited; NaN if no job waited."""


def idle_while_waiting(past: RecordedPast, groups: Mapping[str, Mask]) -> Mapping[str, IdleWhileWaiting]:
    """Return the GPUs that were free while jobs of each group waited; `groups` contains masks of jobs."""
    mgpu = np.array([job.request.mgpu for job in past.jobs], np.float64)
    came_s = np.array([run.eligible_s for run in past.runs], np.float64)
    start_s, end_s = (
        np.array([np.inf if at_s is None else at_s for at_s in times], np.float64)
        for times in ([run.start_s for run in past.runs], [run.end_s for run in past.runs])
    )
    times = np.unique(np.concatenate([came_s, start_s, end_s]))
    times = times[np.isfinite(times)]
    lasts_s = np.diff(times, append=times[-1:])
    allocated = _level(times, start_s, end_s, mgpu)
    idle = np.maximum(past.cluster.total_gpus - allocated / GPU_MGPU, 0.0)
    found = {}
    for name, mask in groups.items():
        mine = mask & (mgpu > 0)
        waiting = _level(times, came_s[mine], start_s[mine], np.ones(int(mine.sum()))) > 0
        waited_s = lasts_s[waiting].sum()
        mean = float(idle[waiting] @ lasts_s[waiting] / waited_s) if waited_s else float("nan")
        found[name] = IdleWhileWaiting(float(waited_s) / 3600, mean)
    return found


def _level(times: Floats, from_s: Floats, to_s: Floats, amount: Floats) -> Floats:
    """Return the total amount of the spans from `from_s` to `to_s` that include each of `times`."""
    change = np.zeros(len(times) + 1)
    np.add.at(change, np.searchsorted(times, from_s), amount)
    np.subtract.at(change, np.searchsorted(times, to_s), amount)
    return np.cumsum(change)[:-1]
