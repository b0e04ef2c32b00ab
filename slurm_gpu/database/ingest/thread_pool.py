"""A few threads that work off what waits for them: a thousand requests a second want no thread each.

Each thread more is one more that waits for Python's lock; and where the event loop calls a thread for each
request, and each thread the loop, that takes longer than the work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import DatabaseError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def outcome_of(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | Exception:
    """What it returns or raises."""
    try:
        return work(*args, **named)
    except Exception as error:
        return error


class ThreadPool(Generic[T, R]):
    """`do` an item's work in one of a few threads, perhaps together with others that wait."""

    def __init__(
        self, work: Callable[[Sequence[T]], Iterable[R | Exception]], n_threads: int, most: int, name: str
    ) -> None:
        """`work` is given up to `most` items, and gives of each its result, or why there is none."""
        self._work, self._n_threads, self._most = work, n_threads, most
        self._pool = ThreadPoolExecutor(n_threads, name)
        self._failures = OutageLog(log, f"{name}: work failed: %s", SystemClock())
        self._lock = threading.Lock()
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._done: list[tuple[asyncio.Future[R], R | Exception]] = []
        self._n_at_work = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def do(self, item: T) -> R:
        """The item's result; raises what is given in its place."""
        self._loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = self._loop.create_future()
        with self._lock:
            self._waiting.append((item, result))
            is_one_more = self._n_at_work < self._n_threads
            self._n_at_work += is_one_more
        if is_one_more:
            self._pool.submit(self._work_off)
        try:
            return await result
        finally:
            del result  # an error knows this frame: all that it knows would wait for a search for cycles

    def _work_off(self) -> None:
        while some := self._next():
            try:
                outcomes = list(self._work([item for item, _ in some]))
            except BaseException as error:  # and be it that there is no memory left: no caller waits for ever
                self._failures.failed(error)
                outcomes = [DatabaseError(f"the work came to an end: {error!r}") for _ in some]
            self._tell([(result, outcome) for (_, result), outcome in zip(some, outcomes, strict=True)])
            del outcomes  # as in `do`

    def _next(self) -> Sequence[tuple[T, asyncio.Future[R]]]:
        """Some that wait, and for which somebody waits; where none does, this thread is done."""
        some: list[tuple[T, asyncio.Future[R]]] = []
        with self._lock:
            while self._waiting and len(some) < self._most:
                item, result = self._waiting.popleft()
                if not result.done():
                    some.append((item, result))
            self._n_at_work -= not some
        return some

    def _tell(self, done: Sequence[tuple[asyncio.Future[R], R | Exception]]) -> None:
        """The loop is called once for all that is done until it comes round."""
        with self._lock:
            is_called = bool(self._done)
            self._done += done
        if is_called:
            return
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop has ended, and nobody waits any more
            self._done.clear()

    def _pass_on(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for result, outcome in done:
            if result.done():
                continue  # whoever waited has given up
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)
