"""Cache answers up to a total size; an answer that does not fit is created for each request."""

from __future__ import annotations

from typing import NamedTuple

from slurm_gpu.monitor.http.response import CachedResponse
from slurm_gpu.monitor.viewer import Visibility

MAX_BYTES = 64 << 20
# The memory that a cached answer takes in addition to its body, for headers and table entries.
_OVERHEAD_BYTES = 2048


class CacheKey(NamedTuple):
    """The key of an answer: the request and the visibility.

    Viewers with different rights never share an answer.
    """

    name: str
    value: str
    visibility: Visibility


class ResponseCache:
    """The cached answers of one state, which are dropped together with the state."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._answers: dict[CacheKey, CachedResponse] = {}
        self._left_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: CacheKey) -> CachedResponse | None:
        """Return a cached answer; None if there is none."""
        return self._answers.get(key)

    def keep(self, key: CacheKey, answer: CachedResponse) -> None:
        """Add an answer, if it fits."""
        needed = _OVERHEAD_BYTES + len(answer.body) + len(answer.packed or b"")
        if needed <= self._left_bytes and key not in self._answers:
            self._left_bytes -= needed
            self._answers[key] = answer
