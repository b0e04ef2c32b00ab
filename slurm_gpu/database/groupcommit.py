"""Work of several threads in one transaction: ten thousand nodes do not each wait for a disk of their own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Generic, Protocol, TypeVar

from slurm_gpu.clock import Clock
from slurm_gpu.database.engine import LockedError
from slurm_gpu.errors import DatabaseError

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")

MOST_AT_ONCE = 200
LOCKED_SHARE = 0.05
"""At most so much of the time goes into trying again for rows that somebody holds: all others wait."""
FIND_OUT_S = 3.0
"""So long it may take to find out whose rows they are. The others come again then."""


class Together(Protocol[T_contra, R_co]):
    """Some items' work in one transaction."""

    def __call__(self, items: Sequence[T_contra], waits: bool) -> Sequence[R_co]:
        """Do and commit it; a result for each. Waits a moment for rows that others hold, or not at all."""


class GroupCommit(Generic[T, R]):
    """`do` an item's work; what comes while a transaction is under way goes into the next one, together.

    Items that have one of `names` in common are never done together. `who` is whose an item is: who found
    rows locked goes alone from then on, and waits for no lock, until that has worked.
    """

    def __init__(
        self,
        together: Together[T, R],
        names: Callable[[T], Set[Hashable]],
        who: Callable[[T], Hashable],
        clock: Clock,
    ) -> None:
        self._together, self._names, self._who, self._clock = together, names, who, clock
        self._lock = threading.Lock()
        self._waiting: deque[_Entry[T, R]] = deque()
        self._under_way = False
        # Only the thread whose turn it is reads and changes these.
        self._locked: set[Hashable] = set()
        self._why_locked = ""
        self._locked_again_s = -math.inf

    def do(self, item: T) -> R:
        """The item's result, once it is committed; raises what its work raised."""
        entry = _Entry[T, R](item, self._names(item), self._who(item))
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
                if leader.who not in self._locked:
                    self._gather(some)
            if leader.who in self._locked:
                self._do_locked(leader)
            else:
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
        while self._waiting and len(some) < MOST_AT_ONCE:
            following = self._waiting[0]
            if following.who in self._locked or not taken.isdisjoint(following.names):
                return
            taken |= following.names
            some.append(self._waiting.popleft())

    def _do(self, some: Sequence[_Entry[T, R]]) -> None:
        try:
            results = self._together([entry.item for entry in some], waits=True)
        except LockedError as error:
            self._find_out(some, error)
        except DatabaseError as error:  # it is away, for one as for all
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
        for place, entry in enumerate(some):
            self._do([entry])
            if isinstance(entry.error, LockedError):
                self._find_out(some[place + 1 :], entry.error)
                return
            if isinstance(entry.error, DatabaseError):
                _fail_all(some[place + 1 :], entry.error)
                return

    def _find_out(self, some: Sequence[_Entry[T, R]], error: LockedError) -> None:
        """The rows of one of these are locked, perhaps: each goes alone until that has worked."""
        self._locked.update(entry.who for entry in some)
        self._why_locked = str(error)
        until_s = self._clock.monotonic() + FIND_OUT_S
        for place, entry in enumerate(some):
            self._do_locked(entry, until_s)
            if isinstance(entry.error, DatabaseError) and not isinstance(entry.error, LockedError):
                _fail_all(some[place + 1 :], entry.error)
                return

    def _do_locked(self, entry: _Entry[T, R], until_s: float | None = None) -> None:
        """Without waiting for rows, and now and then only, or until then."""
        began_s = self._clock.monotonic()
        if began_s < self._locked_again_s if until_s is None else began_s >= until_s:
            entry.fail(LockedError(self._why_locked))
            return
        try:
            (result,) = self._together([entry.item], waits=False)
        except LockedError as error:
            self._why_locked = str(error)
            now_s = self._clock.monotonic()
            self._locked_again_s = now_s + (now_s - began_s) / LOCKED_SHARE
            entry.fail(error)
        except Exception as error:
            entry.fail(error)
        else:
            self._locked.discard(entry.who)
            entry.succeed(result)


class _Entry(Generic[T, R]):
    """`turn` may be acquired once the work is over, or is to be done."""

    def __init__(self, item: T, names: Set[Hashable], who: Hashable) -> None:
        self.item, self.names, self.who = item, names, who
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
    """Each with an error of its own: one that several threads raise would gather all their frames."""
    for entry in some:
        own = type(error)(str(error))
        own.__cause__ = error
        entry.fail(own)
