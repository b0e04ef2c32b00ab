"""Store the data of several nodes in one transaction, which requires only one disk flush."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from slurm_gpu.clock import Clock
from slurm_gpu.database.storage.engine import LockedError
from slurm_gpu.errors import DatabaseError

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

MOST_AT_ONCE = 200
# Retries for locked rows take at most this share of the time, since all other items wait during a retry.
LOCKED_SHARE = 0.05
# The search for items with locked rows stops after this time, and the remaining items are retried later.
FIND_OUT_S = 3.0


class GroupWork(Protocol[T_contra, R_co]):
    """Stores several items in one transaction."""

    def __call__(self, items: Sequence[T_contra], waits: bool) -> Sequence[R_co]:
        """Store and commit the items; return a result for each item.

        If `waits` is true, the call may wait briefly for locked rows.
        """


class GroupCommit(Generic[T, R]):
    """Stores many items in few transactions, one transaction at a time. Thread-safe.

    Items that have a common name, as returned by `names`, are never stored in the same transaction. `who`
    returns the sender of an item. Once a sender's rows are found to be locked, each of its items is stored in
    its own transaction without waiting for locks, until one of them succeeds.
    """

    def __init__(
        self,
        together: GroupWork[T, R],
        names: Callable[[T], Set[Hashable]],
        who: Callable[[T], Hashable],
        clock: Clock,
    ) -> None:
        self._together, self._names, self._who, self._clock = together, names, who, clock
        self._lock = threading.Lock()
        self._locked: set[Hashable] = set()
        self._why_locked = ""
        self._locked_again_s = -math.inf

    def do(self, items: Sequence[T]) -> list[R | Exception]:
        """Store the items; after the commit, return each item's result or the exception that was raised."""
        entries = [_PendingItem[T, R](item, self._names(item), self._who(item)) for item in items]
        coming = deque(entries)
        with self._lock:
            while coming:
                some = self._gather(coming)
                if some[0].who in self._locked:
                    self._do_locked(some[0])
                else:
                    self._do(some)
        return [entry.outcome for entry in entries]

    def _gather(self, coming: deque[_PendingItem[T, R]]) -> list[_PendingItem[T, R]]:
        """Take the first item, and the following items that may be stored together with it."""
        some = [coming.popleft()]
        taken = set(some[0].names)
        if some[0].who in self._locked:
            return some
        while coming and len(some) < MOST_AT_ONCE:
            following = coming[0]
            if following.who in self._locked or not taken.isdisjoint(following.names):
                break
            taken |= following.names
            some.append(coming.popleft())
        return some

    def _do(self, some: Sequence[_PendingItem[T, R]]) -> None:
        try:
            results = self._together([entry.item for entry in some], waits=True)
        except LockedError as error:
            self._find_out(some, error)
        except DatabaseError as error:  # the database is unreachable, so all items fail
            _fail_all(some, error)
        except Exception as error:
            if len(some) > 1:
                # An item that cannot be stored must not block other items.
                self._do_one_by_one(some)
            else:
                some[0].outcome = error
        else:
            for entry, result in zip(some, results, strict=True):
                entry.outcome = result

    def _do_one_by_one(self, some: Sequence[_PendingItem[T, R]]) -> None:
        for place, entry in enumerate(some):
            self._do([entry])
            if isinstance(entry.outcome, LockedError):
                self._find_out(some[place + 1 :], entry.outcome)
                return
            if isinstance(entry.outcome, DatabaseError):
                _fail_all(some[place + 1 :], entry.outcome)
                return

    def _find_out(self, some: Sequence[_PendingItem[T, R]], error: LockedError) -> None:
        """Store each item in its own transaction to find those whose rows are locked."""
        self._locked.update(entry.who for entry in some)
        self._why_locked = str(error)
        until_s = self._clock.monotonic() + FIND_OUT_S
        for place, entry in enumerate(some):
            self._do_locked(entry, until_s)
            outcome = entry.outcome
            if isinstance(outcome, DatabaseError) and not isinstance(outcome, LockedError):
                _fail_all(some[place + 1 :], outcome)
                return

    def _do_locked(self, entry: _PendingItem[T, R], until_s: float | None = None) -> None:
        """Store an item without waiting for locks.

        If `until_s` is given, do not try after this time. Otherwise, try only as often as LOCKED_SHARE
        allows.
        """
        began_s = self._clock.monotonic()
        if began_s < self._locked_again_s if until_s is None else began_s >= until_s:
            entry.outcome = LockedError(self._why_locked)
            return
        try:
            (entry.outcome,) = self._together([entry.item], waits=False)
        except LockedError as error:
            self._why_locked = str(error)
            now_s = self._clock.monotonic()
            self._locked_again_s = now_s + (now_s - began_s) / LOCKED_SHARE
            entry.outcome = error
        except Exception as error:
            entry.outcome = error
        else:
            self._locked.discard(entry.who)


@dataclass(slots=True, eq=False)
class _PendingItem(Generic[T, R]):
    item: T
    names: Set[Hashable]
    who: Hashable
    outcome: R | Exception = field(
        default_factory=lambda: DatabaseError("storing this item was never attempted")
    )


def _fail_all(some: Sequence[_PendingItem[T, R]], error: DatabaseError) -> None:
    """Give each item its own exception.

    A shared exception would accumulate the stack frames of all requests.
    """
    for entry in some:
        own = type(error)(str(error))
        own.__cause__ = error
        entry.outcome = own
