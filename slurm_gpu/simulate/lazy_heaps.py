"""The first of each of many groups, whose members' own firsts come and go."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Key = tuple[float, int]
"""(-priority, job): the smallest is next."""


class Firsts:
    """For each group a heap of its members, by their keys, which is put right where it is looked at.

    A member may be entered several times; what was posted of it last is the one that is valid. A key that is
    posted may have gone meanwhile: `key_of` tells what a member has now, None for nothing, and never less
    than was posted.
    """

    def __init__(self, n_groups: int, n_members: int, key_of: Callable[[int], Key | None]) -> None:
        self._heaps: list[list[tuple[Key, int]]] = [[] for _ in range(n_groups)]
        self._posted: list[Key | None] = [None] * n_members
        self._key_of = key_of

    def post(self, group: int, member: int, key: Key) -> bool:
        """A member of a group has this key; False where a smaller one is known already."""
        posted = self._posted[member]
        if posted is not None and posted <= key:
            return False
        self._posted[member] = key
        heapq.heappush(self._heaps[group], (key, member))
        return True

    def withdraw(self, member: int) -> None:
        """A member has no key until it posts another."""
        self._posted[member] = None

    def first_key(self, group: int) -> Key | None:
        """The smallest of a group."""
        heap = self._heaps[group]
        while heap:
            key, member = heap[0]
            if self._posted[member] == key:
                now = self._key_of(member)
                if now == key:
                    return key
                self._posted[member] = now
                if now is not None:
                    heapq.heapreplace(heap, (now, member))
                    continue
            heapq.heappop(heap)
        return None

    def entries(self, group: int) -> list[tuple[Key, int]]:
        """A copy of a group's heap: keys that may have gone, members that may stand there twice."""
        return self._heaps[group].copy()

    def clear(self) -> None:
        """Forget all of it."""
        for heap in self._heaps:
            heap.clear()
        self._posted = [None] * len(self._posted)
