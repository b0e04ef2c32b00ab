"""One thread for what may block, such as reading the files of a sick process: one task at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog

log = logging.getLogger(__name__)

Task = Callable[[], None]


class WorkerThread:
    """A thread of its own, which begins with the first task.

    A thread that blocks in the kernel cannot be stopped; abandoned, it ends by itself when it comes back.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outage = OutageLog(
            log,
            f"{name}: a task failed: %s",
            SystemClock(),
            over=f"{name}: works again",
        )
        self._tasks: queue.SimpleQueue[Task | None] | None = None
        self._done = threading.Event()
        self._done.set()

    @property
    def idle(self) -> bool:
        """Has all that was started come to its end?"""
        return self._done.is_set()

    def start(self, task: Task) -> None:
        """Begin it; only when idle. Raises RuntimeError where the system has no room for a thread."""
        if self._tasks is None:
            tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
            done = threading.Event()
            given = tasks, done, self._outage
            threading.Thread(target=_work, args=given, name=self._name, daemon=True).start()
            self._tasks, self._done = tasks, done
        self._done.clear()
        self._tasks.put(task)

    def abandon(self) -> None:
        """Abandon the running task, which does not return, and be idle again."""
        if self._tasks is not None:
            self._tasks.put(None)
        self._tasks = None
        self._done = threading.Event()
        self._done.set()


def _work(tasks: queue.SimpleQueue[Task | None], done: threading.Event, outage: OutageLog) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
            outage.worked()
        except Exception as error:
            outage.failed(error)
        done.set()
