"""Report fields that were dropped from stored items because their values are impossible."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.wire import fields

log = logging.getLogger(__name__)

_MAX_NAMED = 100
_MAX_REMEMBERED = 1000
_AGAIN_S = 3600.0
_MAX_WHY = 500


@dataclass(slots=True)
class DroppedField:
    """A field dropped from `n` items of a kind; `why` is the reason for the first item, at `index`."""

    index: int
    why: str
    n: int = 0


@dataclass(slots=True)
class DroppedFields:
    """The dropped fields of one shipment, by kind of item and field name."""

    found: dict[tuple[str, str], DroppedField] = field(default_factory=dict)

    def add(self, kind: str, index: int, dropped: fields.Dropped) -> None:
        """Add the dropped fields of one item."""
        for name, why in dropped.items():
            self.found.setdefault((kind, name), DroppedField(index, why[:_MAX_WHY])).n += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries of `dropped` in the answer."""
        return [
            {"kind": kind, "field": name, "n": item.n, "index": item.index, "why": item.why}
            for (kind, name), item in list(self.found.items())[:_MAX_NAMED]
        ]


class DroppedLog:
    """Logs each dropped field of a node at most once an hour; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._logged_s: dict[tuple[str, str, str], float] = {}

    def warn(self, node: str, found: Mapping[tuple[str, str], DroppedField]) -> None:
        """Log the fields dropped from a node's shipment."""
        for kind, name in self._due(node, found):
            item = found[kind, name]
            log.warning(
                "%s of %s from %s is dropped; the rest is stored: %s",
                name,
                kind if item.n > 1 else f"{kind}[{item.index}]",
                node,
                item.why,
            )

    def _due(self, node: str, found: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        now_s = self._clock.monotonic()
        with self._lock:
            due = [key for key in found if now_s - self._logged_s.get((node, *key), -math.inf) >= _AGAIN_S]
            if len(self._logged_s) + len(due) > _MAX_REMEMBERED:
                self._logged_s.clear()
            self._logged_s.update(((node, *key), now_s) for key in due)
        return due[:_MAX_NAMED]
