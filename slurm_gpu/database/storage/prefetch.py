"""Fetch items in a thread while earlier items are processed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# Interval at which the thread checks whether the consumer still needs items.
_CHECK_EACH_S = 0.1


@dataclass(frozen=True, slots=True)
class _Came(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException | None


def read_ahead(items: Generator[T, None, None], most: int) -> Generator[T, None, None]:
    """Yield `items`; a thread fetches up to `most` of them in advance.

    An exception is raised after the items that preceded it. Ending the iteration closes `items`.
    """
    ready: queue.Queue[_Came[T] | _Failed] = queue.Queue(most)
    abandoned = threading.Event()

    def put(what: _Came[T] | _Failed) -> None:
        while not abandoned.is_set():
            try:
                ready.put(what, timeout=_CHECK_EACH_S)
            except queue.Full:
                continue
            return

    def fetch() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(_Came(item))
                if abandoned.is_set():
                    break
        except BaseException as raised:  # the consumer raises it
            error = raised
        finally:
            items.close()
        put(_Failed(error))

    thread = threading.Thread(target=fetch, name="ahead", daemon=True)
    thread.start()
    try:
        while isinstance(came := ready.get(), _Came):
            yield came.item
        if came.error is not None:
            raise came.error
    finally:
        abandoned.set()
        thread.join()
