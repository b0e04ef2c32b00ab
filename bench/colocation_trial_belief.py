"""Define a belief that starts with predictions, and learns the speeds of pairs from trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.traits import Floats
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.sharing import SharingStretch
from slurm_gpu.colocation.simulation.world import TableWorld, World
from slurm_gpu.colocation.speeds.groups import ends_s
from slurm_gpu.colocation.tables.pair_table import PairTable
from slurm_gpu.colocation.trials import TrialRules, newcomer

# The shared run time in seconds after which the speed of a pair counts as known.
_SEEN_S = 5.0
# The time after which the guard checks a pair. slurm-gpuctld takes longer, because measurements arrive later.
CHECK_S = 20.0


class TrialBelief(KnownBelief):
    """A belief with predicted speeds; with a cap, it is also the guard of the simulation.

    In the matrices (n, n), [i, j] is the value of application i with application j: the predicted speed, the
    lower end of its interval, and the probability that the speed is within the cap. Without a cap, any pair
    may share. With a cap, a pair that has not run together may share for a trial (see trials.py).
    """

    after_s = CHECK_S

    def __init__(
        self, world: World, mean: Floats, lower: Floats, chance: Floats, *, most_together: int, cap: float
    ) -> None:
        self._mean, self._lower, self._chance = mean.copy(), lower.copy(), chance
        names = [one.application for one in world.profiles]
        self._careful = PairTable(names, self._lower)
        self._ran = np.zeros(mean.shape, dtype=bool)
        self._rules = TrialRules(cap)
        super().__init__(
            TableWorld(world.profiles, PairTable(names, self._mean), world.capacity_mib),
            most_together=most_together,
            cap=cap,
        )

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief; the cap applies to whole runs, including the time lost in earlier trials."""
        if len(members) < 2 or math.isinf(self.cap):
            return super().may_share(members)
        if len(members) > self.most_together or not self.fits(members):
            return False
        applications = tuple(one.application for one in members)
        pairs = list(permutations(applications, 2))
        if all(self._ran[pair] for pair in pairs):
            return super().may_share(members) and self._keeps_cap(members)
        return self._rules.may_try(
            members,
            self.speeds(applications),
            self._careful.together(applications),
            math.prod(self._chance[pair] for pair in pairs),
            self.after_s,
        )

    def requeues(self, members: Sequence[Member]) -> int | None:
        """See sharing.SharingGuard."""
        return None if self._run_within_cap(members) else newcomer(members).job

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """See planner.Belief."""
        if not self.fits(members):
            return math.inf
        if math.isfinite(self.cap):
            # The guard limits the loss, and `may_share` weighs it against the gain.
            return sum(one.left_s for one in members)
        applications = [one.application for one in members]
        return ends_s(
            [one.left_s for one in members],
            lambda some: self._careful.together(tuple(applications[one] for one in some)),
        )

    def ran(self, stretch: SharingStretch) -> None:
        """See sharing.SharingObserver."""
        if len(stretch.ran) == 2 and stretch.to_s - stretch.from_s >= _SEEN_S:
            one, other = stretch.ran
            self._learn(one.application, other.application, one.speed)
            self._learn(other.application, one.application, other.speed)

    def ran_out(self, gpu: int, at_s: float, together: Sequence[Member], killed: Member) -> None:
        """See sharing.SharingObserver."""
        if len(together) == 2:
            one, other = (member.application for member in together)
            self._learn(one, other, 0.0)
            self._learn(other, one, 0.0)

    def _learn(self, one: int, other: int, speed: float) -> None:
        self._ran[one, other] = True
        for table in (self._mean, self._lower):
            table[one, other] = speed
        self.forget()
