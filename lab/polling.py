"""Wait until a condition holds, up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lab.errors import LabError

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T | None],
    deadline_s: float,
    what: str,
    explain: Callable[[], str] | None = None,
    interval_s: float = 0.05,
) -> T:
    """Return the first true result of ``condition``; at the deadline, raise LabError with ``explain()``."""
    end = time.monotonic() + deadline_s
    while True:
        if result := condition():
            return result
        if time.monotonic() > end:
            detail = f"\n{explain()}" if explain is not None else ""
            raise LabError(f"{what}: not within {deadline_s:g} s{detail}")
        time.sleep(interval_s)
