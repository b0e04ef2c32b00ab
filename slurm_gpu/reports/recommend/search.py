"""Try changes of limits one at a time; keep those that shorten waits with little harm to any group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from slurm_gpu.policy.language.model import URGENT
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.reports.recommend.past import RecordedPast
from slurm_gpu.reports.recommend.rules import (
    RESOURCES,
    CountedJobs,
    RuleLimit,
    count_by,
    counters,
    jobs_under,
    preemption_of,
    with_limit,
)
from slurm_gpu.reports.recommend.waits import (
    ALL,
    WITHIN_2X,
    GroupWaits,
    IdleWhileWaiting,
    Reproduction,
    compare,
    groups_of,
    idle_while_waiting,
    waits_of,
)
from slurm_gpu.simulate.limits import Resource
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.outcome import ModelOutcome
from slurm_gpu.simulate.scheduler import Scheduling

# The step of a limit, relative to its value. Limits on GPUs change by whole GPUs.
STEP = 0.25
# The mean wait of all jobs must fall by at least the larger of these amounts.
LEAST_GAIN, LEAST_GAIN_H = 0.05, 1 / 60
# The mean wait of each group and of its median user may rise by at most the larger of these amounts. No group
# may have more jobs that never start than under the present limits.
MOST_LOSS, MOST_LOSS_H = 0.10, 0.1
MOST_CHANGES = 3

# The range of each limit, in the unit of the compiled policy.
Bounds = Mapping[RuleLimit, tuple[int, int]]
SearchProgress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class LimitTrial:
    """A change of one limit of one rule, in the unit of the compiled policy: mgpu, counts or MiB."""

    limit: RuleLimit
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The modelled effect of one change, applied in addition to the changes already kept."""

    change: LimitTrial
    waits: Mapping[str, GroupWaits]
    """The modelled waits of each group."""
    hurts: tuple[str, ...]
    """Groups whose wait would rise too much."""
    gain_h: float
    """The reduction in the mean wait of all jobs."""
    worth_it: bool
    """Whether the mean wait of all jobs is reduced enough."""

    @property
    def good(self) -> bool:
        """Return whether the change may be kept."""
        return self.worth_it and not self.hurts


@dataclass(frozen=True)
class Findings:
    """The result of a search."""

    reproduction: Mapping[str, Reproduction]
    """The agreement of the model with the records by group, starting with ALL."""
    before: Mapping[str, GroupWaits]
    after: Mapping[str, GroupWaits]
    """The waits by group after all changes."""
    changes: tuple[LimitTrial, ...] = ()
    trials: tuple[Trial, ...] = ()
    """All trials, in order."""
    refused: tuple[str, ...] = ()
    """Reasons why some or all limits have no proposals."""
    remarks: tuple[str, ...] = field(default=())
    idle: Mapping[str, IdleWhileWaiting] = field(default_factory=dict)
    """The GPUs that were free while jobs of each group waited."""


@dataclass(frozen=True)
class PredictedWaits:
    """The modelled waits of recorded jobs under one policy."""

    waits: Mapping[str, GroupWaits]
    """The modelled waits of each group."""
    requeued: int
    """Number of jobs that were preempted and requeued at least once."""


class LimitSearch:
    """Models recorded jobs under a policy, and under changed limits."""

    def __init__(
        self, past: RecordedPast, policy: PolicyInForce, scheduling: Scheduling, at_s: float
    ) -> None:
        self._past, self._policy, self._scheduling, self._at_s = past, policy, scheduling, at_s
        self._counted: CountedJobs = count_by(policy, past.runs)
        self._jobs = jobs_under(policy, past, self._counted)
        self._groups = groups_of(past, policy)
        self._uid = np.array([run.uid for run in past.runs], dtype=np.int64)

    def predict(self) -> PredictedWaits:
        """Return the modelled waits under the policy."""
        outcome = self._as_it_is
        return PredictedWaits(self._by_group(outcome), int((outcome.restarts > 0).sum()))

    def reproduction(self) -> Mapping[str, Reproduction]:
        """Return how accurately the model reproduces the recorded waits under this policy, by group."""
        recorded_s, wait_s = self._past.recorded_wait_s(), self._waits(self._as_it_is)
        return {name: compare(recorded_s, wait_s, mask) for name, mask in self._groups.items()}

    def findings(
        self,
        bounds: Bounds | None = None,
        most_changes: int = MOST_CHANGES,
        progress: SearchProgress = lambda what: None,
    ) -> Findings:
        """Try changes to every limit or, if `bounds` is given, to the limits in `bounds` within their bounds.

        `progress` is called with a description of each trial.
        """
        progress("the present limits")
        reproduction = self.reproduction()
        before = self._by_group(self._as_it_is)
        refused, idle = tuple(_refusals(reproduction)), idle_while_waiting(self._past, self._groups)
        if any(one.startswith(ALL) for one in refused):
            return Findings(reproduction, before, before, refused=refused, idle=idle)
        limits = [limit for limit in self._limits() if self._is_reproduced(limit, reproduction)]
        changes: list[LimitTrial] = []
        trials: list[Trial] = []
        policy, waits = self._policy, before
        while len(changes) < most_changes:
            tried = []
            for change in _steps(policy, limits, bounds, [one.limit for one in changes]):
                progress(f"{change.limit.key} of {change.limit.rule}: {change.new} instead of {change.old}")
                tried.append(self._try(policy, change, waits, before))
            trials += tried
            good = [trial for trial in tried if trial.good]
            if not good:
                break
            best = max(good, key=lambda trial: trial.gain_h)
            changes.append(best.change)
            policy, waits = with_limit(policy, best.change.limit, best.change.new), best.waits
        return Findings(reproduction, before, waits, tuple(changes), tuple(trials), refused, idle=idle)

    def _try(
        self,
        policy: PolicyInForce,
        change: LimitTrial,
        waits: Mapping[str, GroupWaits],
        before: Mapping[str, GroupWaits],
    ) -> Trial:
        outcome = self._run(with_limit(policy, change.limit, change.new))
        after, stuck, stuck_before = (
            self._by_group(outcome),
            self._stuck(outcome),
            self._stuck(self._as_it_is),
        )
        gain_h = waits[ALL].mean_h - after[ALL].mean_h
        hurts = tuple(
            name
            for name, now in after.items()
            if _hurt(before[name].mean_h, now.mean_h)
            or _hurt(before[name].user_h, now.user_h)
            or stuck[name] > stuck_before[name]
        )
        worth_it = gain_h >= max(LEAST_GAIN * waits[ALL].mean_h, LEAST_GAIN_H)
        return Trial(change, after, hurts, gain_h, worth_it)

    @cached_property
    def _as_it_is(self) -> ModelOutcome:
        return self._run(self._policy)

    def _run(self, policy: PolicyInForce) -> ModelOutcome:
        return simulate(
            self._past.cluster,
            self._jobs,
            scheduling=self._scheduling,
            counters=counters(policy, self._counted, self._at_s),
            preemption=preemption_of(policy),
        )

    def _waits(self, outcome: ModelOutcome) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        wait_s = self._past.wait_s(outcome.start_s)
        # A job that never starts in the model waits at least until the last other job has arrived or ended.
        came_s = np.array([run.eligible_s for run in self._past.runs], dtype=np.float64)
        last_s = float(np.nanmax(np.concatenate([outcome.end_s, came_s]), initial=0.0))
        never = np.isnan(wait_s)
        wait_s[never] = self._past.wait_s(np.full(len(wait_s), last_s))[never]
        return wait_s

    def _stuck(self, outcome: ModelOutcome) -> Mapping[str, int]:
        """Return the number of jobs that never start, such as jobs above a limit, by group."""
        return {name: int(np.isnan(outcome.start_s[mask]).sum()) for name, mask in self._groups.items()}

    def _by_group(self, outcome: ModelOutcome) -> Mapping[str, GroupWaits]:
        wait_s, limited_s = self._waits(outcome), np.nan_to_num(outcome.limited_s)
        return {name: waits_of(wait_s, limited_s, self._uid, mask) for name, mask in self._groups.items()}

    def _limits(self) -> Iterator[RuleLimit]:
        for rule in self._policy.rules:
            if rule.id == URGENT and self._policy.urgent_qos is not None:
                continue  # this limit does not serve to shorten waits
            for key in rule.limits:
                if key in RESOURCES:
                    yield RuleLimit(rule.id, key)

    def _is_reproduced(self, limit: RuleLimit, reproduction: Mapping[str, Reproduction]) -> bool:
        group = next(rule.group.name for rule in self._policy.rules if rule.id == limit.rule)
        return reproduction[group].doubt is None


def _refusals(reproduction: Mapping[str, Reproduction]) -> Iterator[str]:
    for name, one in reproduction.items():
        if one.doubt is not None:
            yield f"{name}: {one.doubt}"
        elif name == ALL and one.within_2x < WITHIN_2X:
            yield (
                f"{name}: the model is within a factor of two for only {one.within_2x:.0%} of the waits; "
                f"{WITHIN_2X:.0%} are required"
            )


def _steps(
    policy: PolicyInForce, limits: list[RuleLimit], bounds: Bounds | None, done: list[RuleLimit]
) -> Iterator[LimitTrial]:
    rules = {rule.id: rule for rule in policy.rules}
    for limit in limits:
        if limit in done or (bounds is not None and limit not in bounds):
            continue
        old = rules[limit.rule].limits[limit.key]
        unit = 1000 if RESOURCES[limit.key] is Resource.MGPU else 1
        step = max(math.floor(old * STEP / unit) * unit, unit)
        low, high = (0, math.inf) if bounds is None else bounds[limit]
        for new in (min(old + step, high), max(old - step, low, min(unit, old))):
            if new != old and low <= new <= high:
                yield LimitTrial(limit, old, int(new))


def _hurt(before_h: float, after_h: float) -> bool:
    return after_h - before_h > max(MOST_LOSS * before_h, MOST_LOSS_H)
