"""Detect changed files without blocking: slurm.conf is often on a shared file system, which may hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_gpu.node.worker_thread import WorkerThread

log = logging.getLogger(__name__)

# Maximum wait for the file system; a working file system needs a thousandth of this time.
WITHIN_S = 0.2

Stamp = tuple[int | None, ...]


class ChangeStamp:
    """Checks the modification times of files in a separate thread, one check at a time."""

    def __init__(
        self,
        paths: Sequence[Path],
        worker: WorkerThread | None = None,
        n_changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`n_changes`, called in the separate thread, returns a count that becomes part of the stamp."""
        self._paths, self._n_changes = paths, n_changes
        self._worker = WorkerThread("slurm.conf") if worker is None else worker
        self._checked = threading.Event()
        self._stamp: Stamp = (*(None for _ in paths), 0)
        self._hangs = False

    def now(self) -> Stamp:
        """Return a stamp that changes with the files, and stays the same while the file system hangs."""
        if self._worker.idle:
            self._check_now()
        return self._stamp

    def _check_now(self) -> None:
        self._checked.clear()
        try:
            self._worker.start(self._check)
            hangs = not self._checked.wait(WITHIN_S)
        except RuntimeError:  # the system cannot start a thread
            hangs = True
        if hangs and not self._hangs:
            log.warning("%s cannot be checked; the previous order of GPUs is used", self._paths[0])
        self._hangs = hangs

    def _check(self) -> None:
        """Update the stamp in the worker thread."""
        try:
            self._stamp = (*map(_modified, self._paths), self._n_changes())
        finally:
            self._checked.set()


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
