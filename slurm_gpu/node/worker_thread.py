"""Run tasks that may block, such as reading files of a stuck process, one at a time in a thread."""

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
    """A worker thread, which is started with the first task.

    A thread that blocks in the kernel cannot be stopped; after `abandon`, it ends when its task returns.
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
        """Return whether no task is running."""
        return self._done.is_set()

    def start(self, task: Task) -> None:
        """Start a task; call this only if `idle`. Raise RuntimeError if the system cannot start a thread."""
        if self._tasks is None:
            tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
            done = threading.Event()
            given = tasks, done, self._outage
            threading.Thread(target=_work, args=given, name=self._name, daemon=True).start()
            self._tasks, self._done = tasks, done
        self._done.clear()
        self._tasks.put(task)

    def abandon(self) -> None:
        """Abandon a running task that does not return, so that another one can be started."""
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
