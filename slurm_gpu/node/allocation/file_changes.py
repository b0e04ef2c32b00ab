"""Whether files have changed, on a file system that may hang: slurm.conf often lies on a shared one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_gpu.node.worker_thread import WorkThread

log = logging.getLogger(__name__)

WITHIN_S = 0.2
"""So long an answer is waited for, once: a file system that works takes a thousandth of it."""

Stamp = tuple[int | None, ...]


class ChangeStamp:
    """When files were changed last, looked at in a thread of its own: one look at a time."""

    def __init__(
        self,
        paths: Sequence[Path],
        worker: WorkThread | None = None,
        n_changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`n_changes` counts changes of something else, in that thread."""
        self._paths, self._n_changes = paths, n_changes
        self._worker = WorkThread("slurm.conf") if worker is None else worker
        self._looked = threading.Event()
        self._stamp: Stamp = (*(None for _ in paths), 0)
        self._hangs = False

    def now(self) -> Stamp:
        """Another one than before where one has changed; that of before while they cannot be looked at."""
        if self._worker.idle:
            self._look_now()
        return self._stamp

    def _look_now(self) -> None:
        self._looked.clear()
        try:
            self._worker.start(self._look)
            hangs = not self._looked.wait(WITHIN_S)
        except RuntimeError:  # there is no room for a thread
            hangs = True
        if hangs and not self._hangs:
            log.warning("%s does not answer; GPUs are counted as Slurm counted them before", self._paths[0])
        self._hangs = hangs

    def _look(self) -> None:
        """In a thread of its own."""
        try:
            self._stamp = (*map(_modified, self._paths), self._n_changes())
        finally:
            self._looked.set()


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
