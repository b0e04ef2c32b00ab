"""Work of several threads in one transaction: ten thousand nodes do not each wait for a disk of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Generic, TypeVar

from slurm_gpu.errors import DatabaseError

T = TypeVar("T")
R = TypeVar("R")

MOST_AT_ONCE = 200


class GroupCommit(Generic[T, R]):
    """`do` an item's work; what comes while a transaction is under way goes into the next one, together.

    `together` does some items' work in one transaction, commits it, and returns a result for each. Items that
    have one of `names` in common are never done together.
    """

    def __init__(
        self, together: Callable[[Sequence[T]], Sequence[R]], names: Callable[[T], Set[Hashable]]
    ) -> None:
        self._together, self._names = together, names
        self._lock = threading.Lock()
        self._waiting: deque[_Entry[T, R]] = deque()
        self._under_way = False

    def do(self, item: T) -> R:
        """The item's result, once it is committed; raises what its work raised."""
        entry = _Entry[T, R](item, self._names(item))
        with self._lock:
            self._waiting.append(entry)
            leads, self._under_way = not self._under_way, True
        if not leads:
            entry.turn.acquire()
        if not entry.results and entry.error is None:  # its turn has come
            self._do_next()
        if entry.error is not None:
            raise entry.error
        return entry.results[0]

    def _do_next(self) -> None:
        """For the first that waits, and those that may go with it."""
        with self._lock:
            some = self._next()
        try:
            self._do(some)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._under_way = following is not None
            if following is not None:
                following.turn.release()
            for entry in some:
                entry.turn.release()

    def _next(self) -> list[_Entry[T, R]]:
        some: list[_Entry[T, R]] = []
        taken: set[Hashable] = set()
        while self._waiting and len(some) < MOST_AT_ONCE:
            names = self._waiting[0].names
            if not taken.isdisjoint(names):
                break
            taken |= names
            some.append(self._waiting.popleft())
        return some

    def _do(self, some: Sequence[_Entry[T, R]]) -> None:
        try:
            results = self._together([entry.item for entry in some])
        except DatabaseError as error:  # it is away, for one as for all
            for entry in some:
                entry.error = error
        except Exception as error:
            if len(some) == 1:
                some[0].error = error
            else:
                # One that cannot be stored must not keep out the others.
                for entry in some:
                    self._do([entry])
        else:
            for entry, result in zip(some, results, strict=True):
                entry.results.append(result)


class _Entry(Generic[T, R]):
    """`turn` may be acquired once the work is done, or is to be done."""

    def __init__(self, item: T, names: Set[Hashable]) -> None:
        self.item, self.names = item, names
        self.results: list[R] = []
        self.error: Exception | None = None
        self.turn = threading.Lock()
        self.turn.acquire()
