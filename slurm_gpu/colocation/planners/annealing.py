"""Plan an order of all starts on each GPU by simulated annealing with the assumed speeds.

The objective is the makespan. Under a cap, at most one job in six may be noticeably slower than when it runs
alone. After each event the planner improves the rest of the last plan, starting from the actual state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf, isfinite

from slurm_gpu.colocation.planner import Belief, Member, PlannerGpu, PlannerView, Start
from slurm_gpu.colocation.planners.decision import LEAST_GAIN
from slurm_gpu.colocation.planners.history import StartHistory
from slurm_gpu.colocation.planners.outlook import Outlook
from slurm_gpu.colocation.planners.phased import PhasedRollout
from slurm_gpu.colocation.planners.rollout import Rollout
from slurm_gpu.colocation.planners.search import HOT, WARM, Consideration, Orders, OrderSearch
from slurm_gpu.colocation.simulation.known_belief import KnownBelief

# Number of evaluations for a new plan without a time limit; for thirty jobs, they take a fifth of a second.
EVALUATIONS = 16_000
# Penalty for each slowed job above the limit, in units of the mean work of a job.
_PRICE = 2.0
# If more than two jobs share a GPU, an evaluation takes longer by this factor, and the number of evaluations
# is divided by it.
_GROUPS_TAKE = 4
# Factor for the number of evaluations of a continued plan if phases are known; events then occur as planned.
_SHARE_AS_PREDICTED = 1 / 8
# Minimum time until the next call.
_SOONEST_S = 1e-3
# Number of jobs that are planned at a time, in the order of submission.
_MOST_WAITING = 128


class Annealing:
    """See Planner. The planner keeps its last plan, and the time at which it started each job."""

    name = "annealing"

    def __init__(
        self,
        belief: Belief,
        *,
        seed: int = 0,
        evaluations: int = EVALUATIONS,
        again: float = 0.25,
        slowed: float = 1 / 6,
    ) -> None:
        """Create a planner that evaluates `evaluations` orders of a GPU for a new plan.

        To improve an existing plan, it evaluates `evaluations` × `again` orders. `slowed` is the fraction of
        jobs that may be noticeably slower if the belief has a cap.
        """
        self._belief, self._rng = belief, random.Random(seed)
        self._evaluations = evaluations if belief.most_together <= 2 else evaluations // _GROUPS_TAKE
        self._again, self._slowed = again, slowed
        self._plan: dict[str | int, list[int]] = {}
        """Numbers of the planned jobs, including those to start now, by the GPU's name or position."""
        self._apart: set[int] = set()
        """The planned jobs that are kept apart from others."""
        self._history = StartHistory()
        self._wake_s = inf
        self._answered: tuple[object, ...] = ()
        """The state after the last decision; no new decision is necessary until it changes."""

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Start jobs from the beginning of each order as long as they may join the running jobs."""
        self._history.update(view)
        running = [gpu.running for gpu in view.gpus]
        if not view.waiting or all(0 < len(some) >= self._belief.most_together for some in running):
            self._wake_s = inf
            return []
        if self._answered == _moment(view.now_s, running, view.waiting):
            return []
        waiting = view.waiting[:_MOST_WAITING]
        rollout = self._outlook(waiting, running, self._history.elapsed_s(view))
        orders = self._improved(rollout, waiting, view.gpus)
        starts: list[Start] = []
        self._wake_s = view.now_s + max(
            min(rollout.wakes_s(gpu, order) for gpu, order in enumerate(orders)), _SOONEST_S
        )
        for gpu, order in enumerate(orders):
            members = tuple(waiting[one] for one in order[: rollout.starts(gpu, order)])
            if members:
                running[gpu] += members
                starts.append(Start(gpu, tuple(member.job for member in members)))
        begun = {job for start in starts for job in start.jobs}
        later = [member for member in view.waiting if member.job not in begun]
        self._plan = {
            _name(place, gpu): [waiting[one].job for one in order]
            for place, (gpu, order) in enumerate(zip(view.gpus, orders, strict=True))
        }
        self._apart = {one.job for one, apart in zip(rollout.members, rollout.apart, strict=True) if apart}
        self._history.start(view.now_s, (one for one in waiting if one.job in begun), bool(later))
        self._answered = _moment(view.now_s, running, later)
        return starts

    @property
    def wake_s(self) -> float:
        """Return when the next job starts without waiting for another to end; see planner.Waker."""
        return self._wake_s

    def _outlook(
        self,
        waiting: Sequence[Member],
        running: Sequence[Sequence[Member]],
        elapsed_s: Sequence[Sequence[float]],
    ) -> Outlook:
        belief = self._belief
        members = [*waiting, *(one for gpu in running for one in gpu)]
        if isinstance(belief, KnownBelief) and any(
            len(belief.world.profiles[one.application].phases) > 1 for one in members
        ):
            return PhasedRollout(belief, waiting, running, elapsed_s, LEAST_GAIN)
        return Rollout(belief, waiting, running, elapsed_s, LEAST_GAIN)

    def _improved(self, rollout: Outlook, waiting: Sequence[Member], gpus: Sequence[PlannerGpu]) -> Orders:
        """Return the improved rest of the last plan, with new jobs added."""
        new = {member.job: index for index, member in enumerate(waiting)}
        orders: Orders = [[] for _ in gpus]
        for place, gpu in enumerate(gpus):
            planned = self._plan.get(_name(place, gpu), ())
            orders[place] += [new.pop(job) for job in planned if job in new]
        load_s = [
            sum(member.left_s for member in gpu.running) + sum(waiting[one].left_s for one in order)
            for gpu, order in zip(gpus, orders, strict=True)
        ]
        for one in sorted(new.values(), key=lambda one: -waiting[one].left_s):
            least = load_s.index(min(load_s))
            orders[least].append(one)
            load_s[least] += waiting[one].left_s
        spared = new.keys() if isinstance(rollout, PhasedRollout) and rollout.spares else ()
        rollout.apart = [one.job in self._apart or one.job in spared for one in rollout.members]
        is_phased = isinstance(rollout, PhasedRollout)
        search = OrderSearch(rollout, orders, self._consideration(rollout, len(gpus)), sets_apart=is_phased)
        if new:
            return search.anneal(self._evaluations, HOT, self._rng)
        again = self._again * (_SHARE_AS_PREDICTED if is_phased else 1)
        return search.anneal(int(self._evaluations * again), WARM, self._rng)

    def _consideration(self, rollout: Outlook, n_gpus: int) -> Consideration | None:
        if not isfinite(self._belief.cap):
            return None
        n = len(rollout.members)
        allowed = int(self._slowed * (n + self._history.ended)) - self._history.slowed
        return Consideration(_PRICE * sum(rollout.left_s) / n / n_gpus, max(allowed, 0))


def _name(place: int, gpu: PlannerGpu) -> str | int:
    return place if gpu.name is None else gpu.name


def _moment(
    now_s: float, running: Sequence[Sequence[Member]], waiting: Sequence[Member]
) -> tuple[object, ...]:
    return now_s, tuple(tuple(one.job for one in some) for some in running), tuple(one.job for one in waiting)
