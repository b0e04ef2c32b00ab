"""What takes time to come is fetched while what came before is worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOKS_EACH_S = 0.1
"""So soon the thread sees that nobody wants more of it."""


@dataclass(frozen=True, slots=True)
class _Came(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException | None


def read_ahead(items: Generator[T, None, None], most: int) -> Generator[T, None, None]:
    """The same items, of which up to `most` are fetched by a thread before they are asked for.

    An error of theirs comes where they would have; who gives up the iteration closes them.
    """
    ready: queue.Queue[_Came[T] | _Failed] = queue.Queue(most)
    given_up = threading.Event()

    def put(what: _Came[T] | _Failed) -> None:
        while not given_up.is_set():
            try:
                ready.put(what, timeout=_LOOKS_EACH_S)
            except queue.Full:
                continue
            return

    def fetch() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(_Came(item))
                if given_up.is_set():
                    break
        except BaseException as raised:  # it is told to who asked
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
        given_up.set()
        thread.join()
