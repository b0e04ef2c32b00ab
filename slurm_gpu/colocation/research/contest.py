"""Compare planners with one another, with running one job at a time, and with the bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.colocation.planner import Planner, PlannerView, Start, wake_s
from slurm_gpu.colocation.planners.bound import NOTICED, least_makespan
from slurm_gpu.colocation.registry import Setting, planner
from slurm_gpu.colocation.simulation.outcome import SharingOutcome
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import World

BASELINE = "sjf"
# Number of waiting jobs that fill the slots of the learned planner (M).
FULL = 8


@dataclass(frozen=True, slots=True)
class ContestResult:
    """The result of one planner over all lists of jobs."""

    planner: str
    ratio: float
    """Mean ratio of the makespan to that of SJF."""
    ratio_max: float
    gap: float
    """Mean relative excess over the bound; 0.01 is one per cent."""
    not_slowed: float
    """Fraction of the jobs that took at most 1.02 times as long as when running alone."""
    worst_slowdown: float
    together: float
    """Mean number of jobs on a GPU while it has at least one."""
    out_of_memory: int
    decision_ms_p50: float
    decision_ms_p99: float
    """99th percentile of the processor time of decisions with waiting jobs."""


class TimedPlanner:
    """A planner that records the duration of each of its decisions."""

    def __init__(self, inner: Planner, most_together: int = 2) -> None:
        self.name, self._inner, self._most = inner.name, inner, most_together
        self.took_ms: list[float] = []
        self.full_ms: list[float] = []
        """Durations of the decisions in which at least FULL jobs waited and a GPU could accept one."""

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """See Planner."""
        before_ns = time.thread_time_ns()
        starts = self._inner.choose(view)
        if view.waiting:
            took_ms = (time.thread_time_ns() - before_ns) / 1e6
            self.took_ms.append(took_ms)
            if len(view.waiting) >= FULL and any(len(gpu.running) < self._most for gpu in view.gpus):
                self.full_ms.append(took_ms)
        return starts

    @property
    def wake_s(self) -> float:
        """See planner.Waker."""
        return wake_s(self._inner)


def contest(
    world: World,
    setting: Callable[[int], Setting],
    names: Sequence[str],
    lists: Sequence[Sequence[SharingJob]],
    *,
    n_gpus: int = 1,
    report_progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[ContestResult]:
    """Return one result per planner, in the order of `names`.

    `setting` is called with the number of the list, once for each planner and list. The gap is relative to
    the bound of the same jobs under the same cap. `report_progress` receives the number of finished runs and
    the total number of runs.
    """
    of, done = len(lists) * len(names), 0
    ran: dict[str, list[SharingOutcome]] = {name: [] for name in names}
    took_ms: dict[str, list[float]] = {name: [] for name in names}
    alone_s, bound_s = [], []
    for number, jobs in enumerate(lists):
        alone_s.append(simulate(world, jobs, planner(BASELINE, setting(number)), n_gpus=n_gpus).makespan_s)
        bound_s.append(_bound_s(world, setting(number), jobs, n_gpus))
        for name in names:
            timed = TimedPlanner(planner(name, setting(number)))
            ran[name].append(simulate(world, jobs, timed, n_gpus=n_gpus))
            took_ms[name] += timed.took_ms
            done += 1
            report_progress(done, of)
    return [_standing(name, ran[name], alone_s, bound_s, took_ms[name]) for name in names]


def _bound_s(world: World, setting: Setting, jobs: Sequence[SharingJob], n_gpus: int) -> float:
    belief = setting.belief
    return least_makespan(
        world, jobs, n_gpus=n_gpus, most_together=belief.most_together, cap=belief.cap
    ).makespan_s


def _standing(
    name: str,
    ran: Sequence[SharingOutcome],
    alone_s: Sequence[float],
    bound_s: Sequence[float],
    took_ms: Sequence[float],
) -> ContestResult:
    makespan_s = np.array([one.makespan_s for one in ran])
    ratio = makespan_s / np.array(alone_s)
    slowdown = np.concatenate([one.slowdown for one in ran])
    p50, p99 = np.percentile(took_ms, [50, 99]) if took_ms else (0.0, 0.0)
    return ContestResult(
        planner=name,
        ratio=float(ratio.mean()),
        ratio_max=float(ratio.max()),
        gap=float((makespan_s / np.array(bound_s)).mean() - 1),
        not_slowed=float((slowdown <= NOTICED).mean()),
        worst_slowdown=float(slowdown.max()),
        together=float(np.mean([one.together for one in ran])),
        out_of_memory=sum(one.out_of_memory for one in ran),
        decision_ms_p50=float(p50),
        decision_ms_p99=float(p99),
    )
