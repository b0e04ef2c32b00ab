"""Work of several threads in one transaction: ten thousand nodes do not each wait for a disk of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Generic, TypeVar

from slurm_gpu.database.engine import LockedError
from slurm_gpu.errors import DatabaseError

T = TypeVar("T")
R = TypeVar("R")

MOST_AT_ONCE = 200
MOST_LOCKED = 3
"""One that finds its rows locked holds up all others for some seconds. After so many the rest comes again."""


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
        if not entry.is_over:  # its turn has come
            self._do_next(entry)
        return entry.result()

    def _do_next(self, leader: _Entry[T, R]) -> None:
        """For the first that waits, and those that may go with it."""
        some = [leader]
        try:
            with self._lock:
                self._waiting.popleft()
                self._gather(some)
            self._do(some)
        finally:
            # Whatever happened, and be it that there is no memory left, nobody may wait for ever.
            for entry in some:
                if not entry.is_over:
                    entry.fail(DatabaseError("the transaction came to an end that nobody foresaw"))
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._under_way = following is not None
            if following is not None:
                following.turn.release()

    def _gather(self, some: list[_Entry[T, R]]) -> None:
        """Let those come along that may go together with these."""
        taken = set(some[0].names)
        while self._waiting and len(some) < MOST_AT_ONCE and taken.isdisjoint(self._waiting[0].names):
            taken |= self._waiting[0].names
            some.append(self._waiting.popleft())

    def _do(self, some: Sequence[_Entry[T, R]]) -> None:
        try:
            results = self._together([entry.item for entry in some])
        except DatabaseError as error:
            if isinstance(error, LockedError) and len(some) > 1:
                # It is one's rows that others hold, perhaps.
                self._do_one_by_one(some)
            else:  # it is away, for one as for all
                _fail_all(some, error)
        except Exception as error:
            if len(some) > 1:
                # One that cannot be stored must not keep out the others.
                self._do_one_by_one(some)
            else:
                some[0].fail(error)
        else:
            for entry, result in zip(some, results, strict=True):
                entry.succeed(result)

    def _do_one_by_one(self, some: Sequence[_Entry[T, R]]) -> None:
        n_locked = 0
        for place, entry in enumerate(some):
            self._do([entry])
            n_locked += isinstance(entry.error, LockedError)
            is_away = isinstance(entry.error, DatabaseError) and not isinstance(entry.error, LockedError)
            if is_away or n_locked == MOST_LOCKED:
                assert isinstance(entry.error, DatabaseError)
                _fail_all(some[place + 1 :], entry.error)
                return


class _Entry(Generic[T, R]):
    """`turn` may be acquired once the work is over, or is to be done."""

    def __init__(self, item: T, names: Set[Hashable]) -> None:
        self.item, self.names = item, names
        self.is_over = False
        self.error: Exception | None = None
        self.turn = threading.Lock()
        self.turn.acquire()
        self._results: list[R] = []

    def succeed(self, result: R) -> None:
        """It is done."""
        self._results.append(result)
        self._end()

    def fail(self, error: Exception) -> None:
        """It cannot be done."""
        self.error = error
        self._end()

    def result(self) -> R:
        """Once it is over."""
        if self.error is not None:
            raise self.error
        return self._results[0]

    def _end(self) -> None:
        self.is_over = True
        self.turn.release()


def _fail_all(some: Sequence[_Entry[T, R]], error: DatabaseError) -> None:
    """Each with an error of its own: one that several threads raised would gather all their frames."""
    for entry in some:
        own = type(error)(str(error))
        own.__cause__ = error
        entry.fail(own)
