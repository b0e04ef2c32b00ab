"""Cache a belief's values for groups of two or three applications, in arrays that are filled on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.net import Floats
from slurm_gpu.colocation.planner import Belief, Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

Places = NDArray[np.intp]
# Maximum number of jobs per GPU, even if a belief permits more: groups of four or more were never measured.
MOST = 3
# Minimum margin by which the sum of speeds must exceed 1, because predicted speeds have errors.
MARGIN = 0.03
# Maximum number of applications in the arrays. Full arrays take 32 MiB; every decision considers fewer.
ROOM = 128
# Maximum number of groups of three that are looked up before the first decision: seventeen applications form
# 969.
_ASKED_BEFORE = 1000
_UNKNOWN = -1
_ORDERS = [list(order) for order in permutations(range(3))]
_PAIRS = list(combinations(range(3), 2))


class ApplicationPlaces:
    """Assign each application a place, which is an index into the arrays.

    The place `empty` represents no job. If no place is free, a new application replaces one that the current
    decision does not consider.
    """

    def __init__(
        self,
        belief: Belief,
        profiles: Sequence[ApplicationProfile],
        capacity_mib: float,
        *,
        room: int,
    ) -> None:
        self.belief, self.profiles, self.capacity_mib = belief, profiles, capacity_mib
        self.empty = room
        self.most = min(belief.most_together, MOST)
        n = self.empty + 1
        self.applications: list[int] = []
        """The application of each place."""
        self._place: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        """For each place, a job that starts now."""
        self._speeds = np.full((n, n, n, 3), np.nan, dtype=np.float32)
        self._speeds[self.empty, self.empty, self.empty] = 0
        self._pays = np.full((n, n, n), _UNKNOWN, dtype=np.int8)
        self._may = np.full((n, n, n), _UNKNOWN, dtype=np.int8)
        self._fits = np.full((n, n, n), _UNKNOWN, dtype=np.int8)
        self.pair_speed = np.zeros((n, n), dtype=np.float32)
        """(places, places) speed of the first application when it shares a GPU with the second."""
        self.pair_may = np.zeros((n, n), dtype=np.float32)
        """(places, places) 1 if two jobs that start now may share a GPU and sharing pays; otherwise 0."""
        self.util = np.zeros(n, dtype=np.float32)
        """(places) mean GPU utilisation of each application, a fraction."""
        self.memory = np.zeros(n, dtype=np.float32)
        """(places) peak memory use of each application, as a fraction of the GPU's memory."""

    def place(self, applications: Iterable[int]) -> Places:
        """Return the places of all applications that a decision considers.

        Pass all of them in one call, since another call may reassign places.
        """
        wanted = list(applications)
        new = {one for one in wanted if one not in self._place}
        if new:
            self._add(sorted(new), set(wanted))
        return np.array([self._place[one] for one in wanted], dtype=np.intp)

    def _add(self, new: Sequence[int], wanted: set[int]) -> None:
        if len(wanted) > self.empty:
            raise ValueError(f"{len(wanted)} applications do not fit into {self.empty} places")
        for one in new:
            profile = self.profiles[one]
            at = self._free(wanted)
            self._place[one] = at
            self.applications[at] = one
            self._members[at] = Member(-1, one, profile.seconds)
            self.util[at] = _or_middle(profile.mean("util"))
            peak_mib = profile.peak("memory_mib")
            self.memory[at] = _or_middle(None if peak_mib is None else peak_mib / self.capacity_mib)
        self._fill_pairs(np.array([self._place[one] for one in new], dtype=np.intp))

    def _free(self, wanted: set[int]) -> int:
        """Return a free place; if there is none, clear the place that was assigned first."""
        at = len(self.applications)
        if at < self.empty:
            self.applications.append(-1)
            return at
        at = self._place.pop(next(one for one in self._place if one not in wanted))
        for table, unknown in (
            (self._speeds, np.nan),
            (self._pays, _UNKNOWN),
            (self._may, _UNKNOWN),
            (self._fits, _UNKNOWN),
        ):
            table[at] = table[:, at] = table[:, :, at] = unknown
        return at

    def _fill_pairs(self, new: Places) -> None:
        """Query all pairs of the new places, and each new place alone, before any decision needs them."""
        if self.most < 2:
            return
        known = np.arange(len(self.applications))
        group = np.full((len(new), len(known) + 1, 3), self.empty, dtype=np.intp)
        group[..., 0], group[:, :-1, 1] = new[:, None], known
        speeds, may = self.speeds(group)[:, :-1], self.may_share(group)[:, :-1]
        inner = new[:, None], known
        self.pair_speed[inner], self.pair_speed.T[inner] = speeds[..., 0], speeds[..., 1]
        self.pair_may[inner] = self.pair_may.T[inner] = may

    def ask_threes(self) -> None:
        """Look up all groups of three in advance to make decisions faster, unless there are too many."""
        n = len(self.applications)
        if self.most >= 3 and n * (n + 1) * (n + 2) // 6 <= _ASKED_BEFORE:
            threes = np.array(list(combinations_with_replacement(range(n), 3)), dtype=np.intp).reshape(-1, 3)
            self.speeds(threes)
            self.may_share(threes)

    def speeds(self, groups: Places) -> Floats:
        """Return the speed of each application in groups (..., 3) of places; 0 for an empty place."""
        flat = self._flat(groups)
        out = self._speeds.reshape(-1, 3).take(flat, axis=0)
        unknown = np.isnan(out[..., 0])
        if unknown.any():
            asked = self._distinct(groups[unknown])
            speeds = np.zeros(asked.shape, dtype=np.float32)
            for row, places in enumerate(self._without_empty(asked)):
                applications = tuple([self.applications[one] for one in places])
                speeds[row, : len(places)] = self.belief.speeds(applications)
            for order in _ORDERS:
                self._speeds[tuple(asked[:, order].T)] = speeds[:, order]
            out = self._speeds.reshape(-1, 3).take(flat, axis=0)
        return out

    def may_share(self, groups: Places) -> NDArray[np.bool_]:
        """Return whether jobs that start now may share and sharing pays, for groups (..., 3) of places."""
        return self._looked_up(self._may, groups, self._ask_may)

    def fits(self, groups: Places) -> NDArray[np.bool_]:
        """Return whether the jobs fit into memory if all start now, for groups (..., 3) of places."""
        return self._looked_up(self._fits, groups, self._ask_fits)

    def pays(self, groups: Places) -> NDArray[np.bool_]:
        """Return whether every pair and the whole group outpace one job, for groups (..., 3) of places.

        If so, sharing is never slower than running the jobs one after the other, regardless of which job ends
        first.
        """
        return self._looked_up(self._pays, groups, self._ask_pays)

    def _looked_up(
        self, table: NDArray[np.int8], groups: Places, ask: Callable[[Places], NDArray[np.bool_]]
    ) -> NDArray[np.bool_]:
        """Return the values of the groups; query each unknown group once."""
        flat = self._flat(groups)
        out = table.take(flat)
        unknown = out == _UNKNOWN
        if unknown.any():
            asked = self._distinct(groups[unknown])
            values = ask(asked)
            for order in _ORDERS:
                table[tuple(asked[:, order].T)] = values
            out = table.take(flat)
        return np.asarray(out == 1)

    def _flat(self, groups: Places) -> Places:
        """Return the flat-array index of each group (..., 3) of places."""
        n = self.empty + 1
        return np.asarray((groups[..., 0] * n + groups[..., 1]) * n + groups[..., 2])

    def _distinct(self, groups: Places) -> Places:
        """Return each of the groups (n, 3) once, with sorted places, so that the empty ones are last."""
        ordered = np.sort(groups, axis=1)
        return np.asarray(ordered[np.unique(self._flat(ordered), return_index=True)[1]])

    def _without_empty(self, groups: Places) -> list[list[int]]:
        return [[one for one in group if one != self.empty] for group in groups.tolist()]

    def _ask_pays(self, groups: Places) -> NDArray[np.bool_]:
        n_jobs = (groups != self.empty).sum(axis=1)
        pays: NDArray[np.bool_] = n_jobs < 2
        for n in range(2, self.most + 1):
            some = np.flatnonzero(n_jobs == n)
            if n > 2:  # a group pays only if all its pairs pay
                some = some[np.logical_and.reduce([self.pays(self._pair(groups[some], at)) for at in _PAIRS])]
            pays[some] = self.speeds(groups[some]).sum(axis=1) >= 1 + MARGIN
        return pays

    def _ask_may(self, groups: Places) -> NDArray[np.bool_]:
        # Three jobs may share only if each pair of them may. Pairs are checked first, because a query for
        # three jobs takes longest.
        may = self.pays(groups)
        three = np.flatnonzero(may & (groups[:, 2] != self.empty))
        for at in _PAIRS:
            may[three] &= self.may_share(self._pair(groups[three], at))
        some = np.flatnonzero(may)
        may[some] = [self._belief_may(places) for places in self._without_empty(groups[some])]
        return may

    def _belief_may(self, places: Sequence[int]) -> bool:
        return len(places) < 2 or self.belief.may_share([self._members[one] for one in places])

    def _ask_fits(self, groups: Places) -> NDArray[np.bool_]:
        return np.array(
            [
                self.belief.fits([self._members[one] for one in places])
                for places in self._without_empty(groups)
            ],
            dtype=bool,
        )

    def _pair(self, groups: Places, at: tuple[int, int]) -> Places:
        """Return one pair from each group (n, 3), padded with the empty place."""
        return np.column_stack([groups[:, at], np.full(len(groups), self.empty)])


def _or_middle(use: float | None) -> float:
    """Return the use if it is known; otherwise 0.5, the middle of the range."""
    return 0.5 if use is None else use
