"""Improve orders of starts by simulated annealing; the cost is computed from their predicted results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

from slurm_gpu.colocation.planners.history import NOTICED
from slurm_gpu.colocation.planners.outlook import Outlook

# By GPU: indices of waiting jobs in the order of their starts. The inner lists are never modified.
Orders = list[list[int]]

# Initial temperatures, as fractions of the cost, for arbitrary orders and for good ones.
HOT, WARM = 0.02, 0.002
# Final temperature, as a fraction of the cost.
_COLD = 0.0002
_MEAN_WEIGHT = 0.1
# Cumulative probabilities of changes within an order: swap two jobs, or move one; otherwise reverse a part.
_SWAP, _MOVE = 0.4, 0.85
# Probability of changing whether a job is kept apart.
_PART = 0.1
# Penalty for any slowed job, as a fraction of the additional penalty for each slowed job above the limit.
_NOTICED_PRICE = 0.02


@dataclass(frozen=True, slots=True)
class Consideration:
    """The penalty for slowed jobs: `price_s` for each above `allowed`, and a small part of it for each."""

    price_s: float
    allowed: int


class OrderSearch:
    """A search that makes small changes to the orders.

    The cost is the time at which the last GPU becomes idle, plus a small fraction of the mean of these times
    over all GPUs, plus the penalty for slowed jobs. The mean rewards progress on the other GPUs.
    """

    def __init__(
        self,
        rollout: Outlook,
        orders: Orders,
        consideration: Consideration | None = None,
        *,
        sets_apart: bool = False,
    ) -> None:
        """Create a search; with `sets_apart` or `consideration`, it also varies which jobs are kept apart."""
        self._rollout, self._orders, self._consideration = rollout, orders, consideration
        self._part = _PART if sets_apart or consideration is not None else 0.0
        self._limit_s = [NOTICED * (member.left_s + member.done_s) for member in rollout.members]
        rolled = [self._roll(gpu, order) for gpu, order in enumerate(orders)]
        self._ends_s, self._slowed = [end_s for end_s, _ in rolled], [slowed for _, slowed in rolled]

    def anneal(self, evaluations: int, hot: float, rng: random.Random) -> Orders:
        """Return the best orders found within `evaluations` evaluations of one GPU's order.

        Also set `rollout.apart` to the value that belongs to these orders.
        """
        rollout, random_ = self._rollout, rng.random
        orders, ends_s, slowed = self._orders.copy(), self._ends_s.copy(), self._slowed.copy()
        apart = rollout.apart
        best = orders.copy(), apart
        least = cost = first = self._cost(ends_s, slowed)
        done = 0 if sum(map(len, orders)) + len(orders) > 2 or self._part else evaluations
        while done < evaluations:
            changed, new_apart = self._change(orders, apart, ends_s, random_)
            rollout.apart = new_apart
            done += len(changed)
            before = [(gpu, orders[gpu], ends_s[gpu], slowed[gpu]) for gpu, _ in changed]
            for gpu, order in changed:
                orders[gpu] = order
                ends_s[gpu], slowed[gpu] = self._roll(gpu, order)
            new_cost = self._cost(ends_s, slowed)
            worse = new_cost - cost
            if worse > 0:
                temperature = first * hot * (_COLD / hot) ** (done / evaluations)
                if random_() >= exp(-worse / temperature):
                    for gpu, order, end_s, n in before:
                        orders[gpu], ends_s[gpu], slowed[gpu] = order, end_s, n
                    continue
            apart, cost = new_apart, new_cost
            if cost < least:
                best, least = (orders.copy(), apart), cost
        rollout.apart = best[1]
        return best[0]

    def _roll(self, gpu: int, order: Sequence[int]) -> tuple[float, int]:
        """Return when the GPU becomes idle, and how many of its jobs are slowed down."""
        end_s = self._rollout.end_s(gpu, order)
        if self._consideration is None:
            return end_s, 0
        took_s, limit_s = self._rollout.took_s, self._limit_s
        return end_s, sum(
            [took_s[one] > limit_s[one] for some in (order, self._rollout.here[gpu]) for one in some]
        )

    def _cost(self, ends_s: Sequence[float], slowed: Sequence[int]) -> float:
        cost = max(ends_s) + _MEAN_WEIGHT * sum(ends_s) / len(ends_s)
        if self._consideration is not None:
            n, allowed = sum(slowed), self._consideration.allowed
            cost += self._consideration.price_s * (_NOTICED_PRICE * n + max(0, n - allowed))
        return cost

    def _change(
        self, orders: Orders, apart: list[bool], ends_s: Sequence[float], random_: Callable[[], float]
    ) -> tuple[Sequence[tuple[int, list[int]]], list[bool]]:
        """Return one small change: the new orders of the affected GPUs, and the jobs to keep apart."""
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
        if kind < self._part:
            apart = apart.copy()
            apart[order[i]] = not apart[order[i]]
            return ((here, order),), apart
        if here != there:
            other = orders[there].copy()
            if other and kind < 0.5:
                j = int(random_() * len(other))
                order[i], other[j] = other[j], order[i]
            else:
                other.insert(int(random_() * (len(other) + 1)), order.pop(i))
            return ((here, order), (there, other)), apart
        j = int(random_() * len(order))
        if kind < _SWAP:
            order[i], order[j] = order[j], order[i]
        elif kind < _MOVE:
            order.insert(j, order.pop(i))
        else:
            i, j = min(i, j), max(i, j)
            order[i : j + 1] = order[i : j + 1][::-1]
        return ((here, order),), apart
