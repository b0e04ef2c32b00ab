"""What newer nodes tell that is not known here: it is not stored, and so it is named."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.wire.timeline import SERIES

log = logging.getLogger(__name__)

_MAX_NAMES = 32
_MAX_TEXT = 64
_MAX_TOLD = 1000
_SERIES = frozenset(SERIES)


class Unknown:
    """Names of one shipment, by kind of item; at most so many of each."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}

    def note(self, kind: str, item: Any, known: frozenset[str]) -> None:
        """Look through the keys of an item, whatever it is."""
        if not isinstance(item, dict):
            return
        # Of thousands of records a second none has any.
        if not item.keys() <= known:
            for key in item.keys() - known:
                self._add(kind, key)
        timeline = item.get("timeline")
        if isinstance(timeline, dict):
            series = timeline.get("series")
            if isinstance(series, dict) and not series.keys() <= _SERIES:
                for key in series.keys() - _SERIES:
                    self._add(kind, f"timeline.series.{key}")

    def _add(self, kind: str, name: str) -> None:
        names = self.names.setdefault(kind, [])
        name = name[:_MAX_TEXT].encode("ascii", "backslashreplace").decode()
        if name not in names and len(names) < _MAX_NAMES:
            names.append(name)


class UnknownLog:
    """Tells of each name once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._is_full = False

    def tell(self, node: str, version: str | None, names: Mapping[str, Collection[str]]) -> None:
        """What that node's slurm-gpud told beyond what is known here."""
        new = {(kind, name) for kind, of_kind in names.items() for name in of_kind} - self._told
        if new and len(self._told) >= _MAX_TOLD and not self._is_full:
            self._is_full = True
            log.warning("nodes send more than %d unknown names: no more are listed", _MAX_TOLD)
        if new and len(self._told) < _MAX_TOLD:
            self._told |= new
            log.warning(
                "slurm-gpud %s of %s tells %s, which slurm-gpudbd %s does not know and does not store",
                version or "",
                node,
                ", ".join(f"{name!r} of {kind}" for kind, name in sorted(new)),
                __version__,
            )
