"""Process batches of items in threads, with few switches between the event loop and the threads.

Every thread has to wait for Python's global lock. If each request required a call to a thread and a call back
to the event loop, the calls would take longer than the work.
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
    """Return the result of `work`, or the exception that it raises."""
    try:
        return work(*args, **named)
    except Exception as error:
        return error


class ThreadPool(Generic[T, R]):
    """Processes items in a few threads; each thread takes a batch of waiting items."""

    def __init__(
        self, work: Callable[[Sequence[T]], Iterable[R | Exception]], n_threads: int, most: int, name: str
    ) -> None:
        """`work` takes up to `most` items, and returns a result or an exception for each of them."""
        self._work, self._n_threads, self._most = work, n_threads, most
        self._pool = ThreadPoolExecutor(n_threads, name)
        self._failures = OutageLog(log, f"{name}: work failed: %s", SystemClock())
        self._lock = threading.Lock()
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._done: list[tuple[asyncio.Future[R], R | Exception]] = []
        self._n_at_work = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def do(self, item: T) -> R:
        """Process an item; return its result or raise its exception."""
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
            # a raised exception refers to this frame and would keep the result alive until garbage collection
            del result

    def _work_off(self) -> None:
        while some := self._next():
            try:
                outcomes = list(self._work([item for item, _ in some]))
            except BaseException as error:  # MemoryError included: no caller may wait indefinitely
                self._failures.failed(error)
                outcomes = [DatabaseError(f"processing failed: {error!r}") for _ in some]
            self._deliver([(result, outcome) for (_, result), outcome in zip(some, outcomes, strict=True)])
            del outcomes  # as in `do`

    def _next(self) -> Sequence[tuple[T, asyncio.Future[R]]]:
        """Take waiting items whose callers still wait; if there are none, count this thread as idle."""
        some: list[tuple[T, asyncio.Future[R]]] = []
        with self._lock:
            while self._waiting and len(some) < self._most:
                item, result = self._waiting.popleft()
                if not result.done():
                    some.append((item, result))
            self._n_at_work -= not some
        return some

    def _deliver(self, done: Sequence[tuple[asyncio.Future[R], R | Exception]]) -> None:
        """Deliver results to the event loop; one call delivers all results that are added before it runs."""
        with self._lock:
            is_called = bool(self._done)
            self._done += done
        if is_called:
            return
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the event loop has ended: no caller waits
            self._done.clear()

    def _pass_on(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for result, outcome in done:
            if result.done():
                continue  # the caller has been cancelled
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)
