"""Run tasks in background threads, so the watcher never blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# The type of a function that runs a task in a thread.
Background = Callable[[Callable[[], Any]], "Future[Any]"]


def in_background(task: Callable[[], T]) -> Future[T]:
    """Run a task in a daemon thread, which does not prevent the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # the error is raised again where the result is read
            future.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return future


class BackgroundTask(Generic[T]):
    """Runs at most one task at a time; the caller polls for the result."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._future: Future[T] | None = None

    @property
    def is_free(self) -> bool:
        """Whether no task is running and no result is pending."""
        return self._future is None

    @property
    def is_done(self) -> bool:
        """Whether a result is available."""
        return self._future is not None and self._future.done()

    def start(self, task: Callable[[], T]) -> None:
        """Start a task; discard the previous task's result if the caller has not taken it."""
        self._future = self._background(task)

    def take(self) -> T:
        """Return the result of the finished task, or raise its error."""
        future, self._future = self._future, None
        assert future is not None
        return future.result()

    def wait(self, most_s: float) -> None:
        """Wait at most `most_s` seconds for the task to finish."""
        if self._future is not None:
            wait([self._future], most_s)

    def drop(self) -> None:
        """Discard the result of the task; the task itself runs to completion."""
        self._future = None
