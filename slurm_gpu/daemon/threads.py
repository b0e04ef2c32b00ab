"""Run a loop in a thread for the lifetime of a context."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def running(name: str, loop: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `loop` in a daemon thread; at the end of the context, set its event and wait up to a second."""
    stop = threading.Event()
    thread = threading.Thread(target=loop, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=1)  # the thread may be waiting for the database
