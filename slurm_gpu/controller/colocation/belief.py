"""Adapt the store to the `Belief` interface of the planners in slurm_gpu.colocation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.speeds.groups import ends_s
from slurm_gpu.colocation.trials import TrialRules, slowdowns
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.colocation.trial_watch import trial_s


class StoreBelief:
    """Implements slurm_gpu.colocation.planner.Belief; an application is an index into `keys`.

    Under a cap on the slowdown, a pair whose speeds were not measured may share only for a trial
    (trial_watch.py).
    """

    def __init__(self, store: ColocationStore, most_together: int, cap: float | None) -> None:
        self._store = store
        self.most_together, self.cap = most_together, math.inf if cap is None else cap
        self.keys: list[str] = []
        self._at: dict[str, int] = {}
        self._closed: frozenset[int] = frozenset()
        self._version = store.version
        self._speeds: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._may: dict[tuple[int, ...], bool] = {}
        self._measured: dict[tuple[int, ...], bool] = {}
        self._rules = TrialRules(self.cap)
        self.not_tried: set[frozenset[str]] = set()
        """Pairs of keys for which no trial may start now."""
        self._unobserved: frozenset[int] = frozenset()

    def is_of(self, store: ColocationStore) -> bool:
        """Return whether this belief is based on the given store."""
        return self._store is store

    def index(self, key: str) -> int:
        """Return the index of this key in `keys`; append the key if it is new."""
        at = self._at.get(key)
        if at is None:
            at = self._at[key] = len(self.keys)
            self.keys.append(key)
        return at

    def update(
        self,
        closed: Collection[int],
        not_tried: Collection[frozenset[str]] = (),
        unobserved: Collection[int] = (),
    ) -> None:
        """Update the belief from the store; the GPUs of the `closed` jobs accept no further jobs.

        No trial may start for a pair of keys in `not_tried`, or with a job in `unobserved`, whose lost time
        is unknown.
        """
        self._closed, self.not_tried = frozenset(closed), set(not_tried)
        self._unobserved = frozenset(unobserved)
        if self._version != self._store.version:
            self._version = self._store.version
            self._speeds.clear()
            self._may.clear()
            self._measured.clear()

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the speed of each application when it runs with the others."""
        known = self._speeds.get(applications)
        if known is None:
            keys = [self.keys[one] for one in applications]
            known = self._speeds[applications] = tuple(
                self._store.speed(key, keys[:at] + keys[at + 1 :]) for at, key in enumerate(keys)
            )
        return known

    def fits(self, members: Sequence[Member]) -> bool:
        """Return whether the jobs fit in memory if each uses its maximum.

        The store does not contain memory use over time.
        """
        if len(members) < 2:
            return True
        return self._is_open(members) and self._store.may_be_together(
            [self.keys[one.application] for one in members]
        )

    def may_share(self, members: Sequence[Member]) -> bool:
        """Return whether the number, memory use and slowdown of the jobs allow them to share a GPU.

        The cap applies to whole runs, so a job that has lost time in a trial may lose less from now on.
        """
        if len(members) < 2:
            return True
        if len(members) > self.most_together or not self._is_open(members):
            return False
        applications = tuple(one.application for one in members)
        if self.is_unmeasured(applications):
            return self._may_try(members)
        known = self._may.get(applications)
        if known is None:
            known = self._may[applications] = self._store.may_be_together(
                [self.keys[one] for one in applications]
            ) and all(1 / speed <= self.cap for speed in self.speeds(applications))
        return known and self._keep_cap(members)

    def is_unmeasured(self, applications: tuple[int, ...]) -> bool:
        """Return whether the jobs may share only for a trial: there is a cap, and a speed is unknown."""
        if math.isinf(self.cap):
            return False
        known = self._measured.get(applications)
        if known is None:
            known = self._store.is_measured([self.keys[one] for one in applications])
            self._measured[applications] = known
        return not known

    def _may_try(self, members: Sequence[Member]) -> bool:
        keys = [self.keys[one.application] for one in members]
        if len(keys) != 2 or frozenset(keys) in self.not_tried or not self._store.may_be_together(keys):
            return False
        if any(one.job in self._unobserved for one in members):
            return False
        found = [self._store.prediction(key, other, self.cap) for key, other in (keys, reversed(keys))]
        return self._rules.may_try(
            members,
            [one.speed for one in found],
            [one.lower for one in found],
            math.prod(one.chance for one in found),
            trial_s(self._store, keys),
        )

    def _keep_cap(self, members: Sequence[Member]) -> bool:
        """Return whether whole runs stay within the cap; without lost time, `may_share` checks the speeds."""
        if not any(one.lost_s for one in members):
            return True
        applications = [one.application for one in members]
        return self._rules.are_kept(
            slowdowns(members, lambda some: self.speeds(tuple(applications[one] for one in some)))
        )

    def _is_open(self, members: Sequence[Member]) -> bool:
        """Return False if any member runs on a GPU that accepts no further jobs."""
        return not self._closed or not any(one.job in self._closed for one in members)

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """Return the expected time until the last job ends; lower bounds of speeds are not considered."""
        if not self.fits(members):
            return math.inf
        applications = [one.application for one in members]
        return ends_s(
            [one.left_s for one in members],
            lambda some: self.speeds(tuple(applications[one] for one in some)),
        )
