"""Collect and log unknown names in shipments of newer nodes; their values are not stored."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.wire.timeline import SERIES

log = logging.getLogger(__name__)

_MAX_NAMES = 32
_MAX_TEXT = 64
_MAX_LOGGED = 1000
_SERIES = frozenset(SERIES)


class Unknown:
    """The unknown names in one shipment by kind of item, at most _MAX_NAMES for each kind."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}

    def note(self, kind: str, item: Any, known: frozenset[str]) -> None:
        """Collect the unknown keys of an item; ignore an item that is not an object."""
        if not isinstance(item, dict):
            return
        # Usually, a record has no unknown key.
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
    """Logs each unknown name only once."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()
        self._is_full = False

    def warn(self, node: str, version: str | None, names: Mapping[str, Collection[str]]) -> None:
        """Log names that have not been logged before."""
        new = {(kind, name) for kind, of_kind in names.items() for name in of_kind} - self._logged
        if new and len(self._logged) >= _MAX_LOGGED and not self._is_full:
            self._is_full = True
            log.warning("nodes send more than %d unknown names; further names are not logged", _MAX_LOGGED)
        if new and len(self._logged) < _MAX_LOGGED:
            self._logged |= new
            log.warning(
                "slurm-gpud %s of %s sends %s, which slurm-gpudbd %s does not support and does not store",
                version or "",
                node,
                ", ".join(f"{name!r} of {kind}" for kind, name in sorted(new)),
                __version__,
            )
