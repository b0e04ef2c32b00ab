"""Plans all starts at once, the order on each GPU, by simulated annealing against the believed speeds.

What is minimised is the time at which the last GPU is idle, with a little of the mean over GPUs, so that
progress on one that is not the last counts, and, where there is a cap, a price on each job that is noticeably
slowed down. After each event the plan is improved anew, from what is left of the last one: what really
happened is known then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import exp, isfinite

from slurm_gpu.colocation.planner import Belief, Gpu, Member, Start, View
from slurm_gpu.colocation.planners.rollout import Rollout

Orders = list[list[int]]
"""By GPU: indices of waiting jobs, as they start there one after the other. The lists in it never change."""

NOTICED = 1.02
"""A job is slowed down if its whole run takes longer than this, alone."""
_PRICE = 0.3
"""Of a slowed job under a cap: so much of a mean job's work must be saved by it."""
_MEAN_WEIGHT = 0.1
_HOT, _WARM, _COLD = 0.02, 0.002, 0.0002
"""Temperatures, in parts of the cost: at the beginning, where a plan goes on, and at the end."""
_MOST_WAITING = 128
"""So many are planned for at a time, by submission."""


class Annealing:
    """See Planner. Remembers its last plan, and when it started whom."""

    name = "annealing"

    def __init__(
        self,
        belief: Belief,
        *,
        seed: int = 0,
        evaluations: int = 12_000,
        again: float = 0.125,
        least_gain: float = 0.0,
    ) -> None:
        """A new plan takes so many `evaluations` of a GPU's order, one that goes on `again` times as many.

        `least_gain`: sharing pays where this much more is done in a second, of what one job does alone.
        """
        self._belief, self._rng, self._least_gain = belief, random.Random(seed), least_gain
        self._evaluations, self._again = evaluations, again
        self._plan: list[list[int]] = []
        """By GPU, jobs by number."""
        self._started_s: dict[int, float] = {}
        self._answered: tuple[object, ...] = ()
        """The moment that was answered last, as it is after the answer."""

    def choose(self, view: View) -> Sequence[Start]:
        """The heads of all orders, as far as they may join."""
        most = self._belief.most_together
        if not view.waiting or all(0 < len(gpu.running) >= most for gpu in view.gpus):
            return []
        waiting, running = view.waiting[:_MOST_WAITING], [gpu.running for gpu in view.gpus]
        if self._answered == _moment(view.now_s, running, waiting):
            return []
        rollout = Rollout(self._belief, waiting, running, self._elapsed_s(view), self._least_gain)
        orders = self._improved(rollout, waiting, view.gpus)
        starts: list[Start] = []
        for gpu, order in enumerate(orders):
            begin, later = _split(order, rollout.starts(gpu, order))
            if begin:
                members = [waiting[one] for one in begin]
                running[gpu] += tuple(members)
                starts.append(Start(gpu, tuple(member.job for member in members)))
                self._started_s.update((member.job, view.now_s) for member in members)
            orders[gpu] = later
        self._plan = [[waiting[one].job for one in order] for order in orders]
        begun = {job for start in starts for job in start.jobs}
        self._answered = _moment(
            view.now_s, running, [one for one in view.waiting if one.job not in begun][:_MOST_WAITING]
        )
        return starts

    def _elapsed_s(self, view: View) -> list[list[float]]:
        """How long each one has been running; where nobody remembers, as if it had been alone."""
        self._started_s = {
            member.job: self._started_s.get(member.job, view.now_s - member.done_s)
            for gpu in view.gpus
            for member in gpu.running
        }
        return [[view.now_s - self._started_s[member.job] for member in gpu.running] for gpu in view.gpus]

    def _improved(self, rollout: Rollout, waiting: Sequence[Member], gpus: Sequence[Gpu]) -> Orders:
        at = {member.job: index for index, member in enumerate(waiting)}
        orders = [[at.pop(job) for job in order if job in at] for order in self._plan]
        orders = orders[: len(gpus)] + [[] for _ in range(len(gpus) - len(orders))]
        load_s = [
            sum(member.left_s for member in gpu.running) + sum(waiting[one].left_s for one in order)
            for gpu, order in zip(gpus, orders, strict=True)
        ]
        new = sorted(at.values(), key=lambda one: -waiting[one].left_s)
        for one in new:
            gpu = load_s.index(min(load_s))
            orders[gpu].append(one)
            load_s[gpu] += waiting[one].left_s
        search = Search(rollout, orders, self._price_s(rollout, len(gpus)))
        if new:
            return search.anneal(self._evaluations, _HOT, self._rng)
        return search.anneal(int(self._evaluations * self._again), _WARM, self._rng)

    def _price_s(self, rollout: Rollout, n_gpus: int) -> float:
        if not isfinite(self._belief.cap):
            return 0.0
        return _PRICE * sum(rollout.left_s) / len(rollout.left_s) / n_gpus


def _moment(
    now_s: float, running: Sequence[Sequence[Member]], waiting: Sequence[Member]
) -> tuple[object, ...]:
    return (
        now_s,
        tuple(tuple(one.job for one in gpu) for gpu in running),
        tuple(one.job for one in waiting),
    )


def _split(order: list[int], at: int) -> tuple[list[int], list[int]]:
    return order[:at], order[at:]


class Search:
    """Better orders by small changes: a job goes elsewhere, two change places, some turn round."""

    def __init__(self, rollout: Rollout, orders: Orders, price_s: float = 0.0) -> None:
        """`price_s` is what each slowed job adds to the cost."""
        self._rollout, self._orders, self._price_s = rollout, orders, price_s
        self._limit_s = [NOTICED * (member.left_s + member.done_s) for member in rollout.members]
        self._ends_s = [0.0] * len(orders)
        self._slowed = [0] * len(orders)
        for gpu, order in enumerate(orders):
            self._ends_s[gpu], self._slowed[gpu] = self._roll(gpu, order)

    def _roll(self, gpu: int, order: list[int]) -> tuple[float, int]:
        """When it is idle, and how many of its jobs are slowed down."""
        end_s = self._rollout.end_s(gpu, order)
        if not self._price_s:
            return end_s, 0
        took_s, limit_s = self._rollout.took_s, self._limit_s
        slowed = sum([took_s[one] > limit_s[one] for one in order])
        return end_s, slowed + sum([took_s[one] > limit_s[one] for one in self._rollout.here[gpu]])

    def cost(self, ends_s: Sequence[float], slowed: Sequence[int]) -> float:
        """Of GPUs that are idle then, with so many slowed jobs each."""
        mean_s = sum(ends_s) / len(ends_s)
        return max(ends_s) + _MEAN_WEIGHT * mean_s + self._price_s * sum(slowed)

    def anneal(self, evaluations: int, hot: float, rng: random.Random) -> Orders:
        """The best that it comes across."""
        random_ = rng.random
        orders, ends_s, slowed = self._orders, self._ends_s, self._slowed
        best, cost = orders, self.cost(ends_s, slowed)
        least = first = cost
        if sum(map(len, orders)) + len(orders) < 3:  # one job for one GPU
            return list(orders)
        done = 0
        while done < evaluations:
            changed = self._change(orders, ends_s, random_)
            done += max(len(changed), 1)
            new_orders, new_ends_s, new_slowed = orders.copy(), ends_s.copy(), slowed.copy()
            for gpu, order in changed:
                new_orders[gpu] = order
                new_ends_s[gpu], new_slowed[gpu] = self._roll(gpu, order)
            new_cost = self.cost(new_ends_s, new_slowed)
            worse = new_cost - cost
            if worse > 0:
                temperature = first * hot * (_COLD / hot) ** (done / evaluations)
                if random_() >= exp(-worse / temperature):
                    continue
            orders, ends_s, slowed, cost = new_orders, new_ends_s, new_slowed, new_cost
            if cost < least:
                best, least = orders, cost
        return list(best)

    def _change(
        self, orders: Orders, ends_s: Sequence[float], random_: Callable[[], float]
    ) -> Sequence[tuple[int, list[int]]]:
        """One small change: the GPUs that it concerns, with their new orders."""
        n = len(orders)
        here = there = 0
        if n > 1:
            here = ends_s.index(max(ends_s)) if random_() < 0.5 else int(random_() * n)
            while not orders[here]:
                here = int(random_() * n)
            there = here if random_() < 0.5 else int(random_() * n)
        kind = random_()
        order = orders[here].copy()
        i = int(random_() * len(order))
        if here != there:
            other = orders[there].copy()
            if other and kind < 0.5:
                j = int(random_() * len(other))
                order[i], other[j] = other[j], order[i]
            else:
                other.insert(int(random_() * (len(other) + 1)), order.pop(i))
            return (here, order), (there, other)
        j = int(random_() * len(order))
        if kind < 0.4:
            order[i], order[j] = order[j], order[i]
        elif kind < 0.85:
            order.insert(j, order.pop(i))
        else:
            if i > j:
                i, j = j, i
            order[i : j + 1] = order[i : j + 1][::-1]
        return ((here, order),)
