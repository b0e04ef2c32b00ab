"""Find the smallest key in each of many groups while the keys of their members change."""

from __future__ import annotations

import heapq
from collections.abc import Callable

# (-priority, job): the smallest is next.
Key = tuple[float, int]


class LazyHeaps:
    """One heap of members per group, corrected only when it is read.

    A member may be in its heap several times; only the key that was posted last is valid. A posted key may be
    outdated. `key_of` returns a member's current key, which is never smaller than the posted key, or None if
    the member has no key.
    """

    def __init__(self, n_groups: int, n_members: int, key_of: Callable[[int], Key | None]) -> None:
        self._heaps: list[list[tuple[Key, int]]] = [[] for _ in range(n_groups)]
        self._posted: list[Key | None] = [None] * n_members
        self._key_of = key_of

    def post(self, group: int, member: int, key: Key) -> bool:
        """Post the key of a member; return False if an equal or smaller key has already been posted."""
        posted = self._posted[member]
        if posted is not None and posted <= key:
            return False
        self._posted[member] = key
        heapq.heappush(self._heaps[group], (key, member))
        return True

    def withdraw(self, member: int) -> None:
        """Remove a member until it posts another key."""
        self._posted[member] = None

    def first_key(self, group: int) -> Key | None:
        """Return the smallest key of a group; None if it has no member."""
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
        """Return a copy of a group's heap; keys may be outdated and members duplicated."""
        return self._heaps[group].copy()

    def clear(self) -> None:
        """Remove all members."""
        for heap in self._heaps:
            heap.clear()
        self._posted = [None] * len(self._posted)
