"""Cache a belief's values for groups of two or three applications, in arrays that are filled on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.net import Floats
from slurm_gpu.colocation.planner import Belief, Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

Places = NDArray[np.intp]
# Maximum jobs per GPU, even if a belief permits more: four and more were never measured.
MOST = 3
# Sharing pays if the sum of speeds exceeds 1 by this margin, since predicted speeds have errors.
MARGIN = 0.03
# Maximum applications in the arrays: more than a decision considers, and few enough for small arrays.
ROOM = 48
# Maximum groups of three that are looked up before the first decision: as many as sixteen applications form.
_ASKED_BEFORE = 1000
_UNKNOWN = -1


class ApplicationPlaces:
    """Assign each application a place, which is an index into the arrays.

    The place `empty` stands for no job. If a request needs more places than are free, all places are cleared
    and assigned again.
    """

    def __init__(
        self,
        belief: Belief,
        profiles: Sequence[ApplicationProfile],
        capacity_mib: float,
        *,
        margin: float = MARGIN,
        room: int = ROOM,
    ) -> None:
        self.belief, self.profiles, self.capacity_mib, self.margin = belief, profiles, capacity_mib, margin
        self.empty = room
        self.most = min(belief.most_together, MOST)
        self._forget()

    def _forget(self) -> None:
        n = self.empty + 1
        self.applications: list[int] = []
        self._place: dict[int, int] = {}
        self._speeds = np.full((n, n, n, 3), np.nan, dtype=np.float32)
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
        if len(self.applications) + len(new) > self.empty:
            self._forget()
            new = sorted(wanted)
        for one in new:
            self._place[one] = len(self.applications)
            self.applications.append(one)
            at, profile = self._place[one], self.profiles[one]
            self.util[at] = _or_middle(profile.mean("util"))
            peak_mib = profile.peak("memory_mib")
            self.memory[at] = _or_middle(None if peak_mib is None else peak_mib / self.capacity_mib)
        self._fill_pairs()

    def _fill_pairs(self) -> None:
        known = np.arange(len(self.applications))
        if self.most < 2:
            return
        asked = np.append(known, self.empty)  # also each application alone: no decision has to query it
        group = np.full((len(asked), len(asked), 3), self.empty, dtype=np.intp)
        group[..., 0], group[..., 1] = asked[:, None], asked[None, :]
        inner = np.ix_(known, known)
        self.pair_speed[inner] = self.speeds(group)[:-1, :-1, 0]
        self.pair_may[inner] = self.may_share(group)[:-1, :-1]

    def ask_threes(self) -> None:
        """Look up all groups of three in advance, if there are few enough, to make decisions faster."""
        n = len(self.applications)
        if self.most >= 3 and n * (n + 1) * (n + 2) // 6 <= _ASKED_BEFORE:
            threes = np.array(list(combinations_with_replacement(range(n), 3)), dtype=np.intp).reshape(-1, 3)
            self.speeds(threes)
            self.may_share(threes)

    def speeds(self, groups: Places) -> Floats:
        """Return the speed of each application in groups (..., 3) of places; 0 for an empty place."""
        out = self._speeds.reshape(-1, 3).take(self._flat(groups), axis=0)
        unknown = np.isnan(out[..., 0])
        if unknown.any():
            for group in np.unique(np.sort(groups[unknown], axis=-1), axis=0):
                self._ask_speeds(tuple(int(one) for one in group))
            return self.speeds(groups)
        return out

    def _flat(self, groups: Places) -> Places:
        """Return the indices of groups (..., 3) of places in a flat array."""
        n = self.empty + 1
        return np.asarray((groups[..., 0] * n + groups[..., 1]) * n + groups[..., 2])

    def may_share(self, groups: Places) -> NDArray[np.bool_]:
        """Return for groups (..., 3) of places whether jobs that start now may share and sharing pays."""
        out = self._may.take(self._flat(groups))
        unknown = out == _UNKNOWN
        if unknown.any():
            for group in np.unique(np.sort(groups[unknown], axis=-1), axis=0):
                self._ask_may(tuple(int(one) for one in group))
            return self.may_share(groups)
        return np.asarray(out == 1)

    def fits(self, groups: Places) -> NDArray[np.bool_]:
        """Return for groups (..., 3) of places whether the jobs fit into memory, if all start now."""
        out = self._fits.take(self._flat(groups))
        unknown = out == _UNKNOWN
        if unknown.any():
            for group in np.unique(np.sort(groups[unknown], axis=-1), axis=0):
                fits = self.belief.fits(self._members([int(one) for one in group]))
                for order in permutations(group):
                    self._fits[order] = fits
            return self.fits(groups)
        return np.asarray(out == 1)

    def pays(self, groups: Places) -> NDArray[np.bool_]:
        """Return for groups (..., 3) of places whether each pair, and the whole group, outpaces a single job.

        If this is the case, sharing is never slower than running the jobs one after the other, regardless of
        which job ends first.
        """
        out = self._pays.take(self._flat(groups))
        unknown = out == _UNKNOWN
        if unknown.any():
            for group in np.unique(np.sort(groups[unknown], axis=-1), axis=0):
                self._ask_pays([int(one) for one in group if one != self.empty])
            return self.pays(groups)
        return np.asarray(out == 1)

    def _ask_pays(self, here: Sequence[int]) -> None:
        pays = True
        for n in range(2, len(here) + 1):
            for some in combinations(here, n):
                speeds = self.speeds(self._padded(some))
                pays = pays and float(speeds.sum()) >= 1 + self.margin
        for order in permutations(self._padded(here).tolist()):
            self._pays[order] = pays

    def _padded(self, here: Sequence[int]) -> Places:
        return np.array([*here, *[self.empty] * (3 - len(here))], dtype=np.intp)

    def _ask_speeds(self, group: tuple[int, ...]) -> None:
        here = [one for one in group if one != self.empty]
        speeds = self.belief.speeds(tuple(self.applications[one] for one in here))
        speed_of = [*speeds, *[0.0] * (3 - len(here))]
        padded = self._padded(here).tolist()
        for order in permutations(range(3)):
            a, b, c = (padded[i] for i in order)
            self._speeds[a, b, c] = [speed_of[i] for i in order]

    def _members(self, group: Iterable[int]) -> list[Member]:
        """Return a member for each application in the group, as a job that starts now."""
        here = [self.applications[one] for one in group if one != self.empty]
        return [Member(-1, one, self.profiles[one].seconds) for one in here]

    def _ask_may(self, group: tuple[int, ...]) -> None:
        here = [one for one in group if one != self.empty]
        # If two may not share, three may not either. Pairs come first, because a query for three takes
        # longest.
        may = all(
            self.may_share(np.array([*pair, self.empty])) for pair in combinations(here, 2) if len(here) > 2
        ) and bool(self.pays(np.array(group)))
        may = may and (len(here) < 2 or self.belief.may_share(self._members(here)))
        for order in permutations(group):
            self._may[order] = may


def _or_middle(use: float | None) -> float:
    """Return the use if it is known; otherwise 0.5, the middle of the range."""
    return 0.5 if use is None else use
