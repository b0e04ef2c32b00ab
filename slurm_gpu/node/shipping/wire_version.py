"""Negotiate the wire version with slurm-gpudbd (docs/contracts.md)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.wire import WIRE_RANGE

log = logging.getLogger(__name__)

_MAX_LOGGED = 1000

# The lowest and highest versions that one side supports.
Range = tuple[int, int]


class WireVersion:
    """The wire version of the next shipment; initially the highest version that this node supports."""

    def __init__(self, own: Range = WIRE_RANGE) -> None:
        self._own = own
        self.version = own[1]
        self._logged: set[tuple[str, str]] = set()
        self._dropped: set[tuple[str, str]] = set()

    def negotiate(self, theirs: Range | None) -> bool:
        """Switch to the highest version that both sides support; return whether the version changed.

        `theirs` is None if slurm-gpudbd's versions are unknown.
        """
        if theirs is None:
            return False
        common = min(theirs[1], self._own[1])
        if common < max(theirs[0], self._own[0]) or common == self.version:
            return False
        self.version = common
        log.info(
            "slurm-gpudbd supports wire version %s, and slurm-gpud %s supports %s; version %d is used",
            _span(theirs),
            __version__,
            _span(self._own),
            common,
        )
        return True

    def gap(self, theirs: Range | None) -> str:
        """Return the error message if there is no version that both sides support."""
        if theirs is None:
            return f"slurm-gpudbd does not support wire version {self.version}"
        older = "slurm-gpudbd" if theirs[1] < self._own[0] else "slurm-gpud on this node"
        return (
            f"slurm-gpudbd supports wire version {_span(theirs)}, but slurm-gpud {__version__} supports "
            f"{_span(self._own)}: upgrade {older}"
        )

    def ignored(self, ignored: Mapping[str, Sequence[str]], version: str | None) -> None:
        """Log once each key that slurm-gpudbd does not support."""
        new = {(kind, key) for kind, keys in ignored.items() for key in keys} - self._logged
        if new:
            self._logged |= new
            log.warning(
                "slurm-gpudbd %s does not support %s and did not store it; upgrade slurm-gpudbd",
                version or "",
                ", ".join(f"{key} of {kind}" for kind, key in sorted(new)),
            )

    def dropped(self, dropped: Mapping[tuple[str, str], str]) -> None:
        """Log once each field that slurm-gpudbd did not store, with the kind of item and the reason."""
        for (kind, name), why in dropped.items():
            if (kind, name) not in self._dropped and len(self._dropped) < _MAX_LOGGED:
                self._dropped.add((kind, name))
                log.warning("slurm-gpudbd drops %s of %s and stores the rest: %s", name, kind, why)


def read_range(value: Any) -> Range | None:
    """Parse `wire` in an answer; return None if it is malformed."""
    match value:
        case [int(low), int(high)] if 0 < low <= high:
            return low, high
        case _:
            return None


def read_ignored(value: Any) -> dict[str, list[str]]:
    """Parse `ignored` in an answer and return names by kind; leave out malformed entries."""
    kinds = value.items() if isinstance(value, dict) else ()
    return {kind: [str(key)[:100] for key in keys] for kind, keys in kinds if isinstance(keys, list) and keys}


def read_dropped(value: Any) -> dict[tuple[str, str], str]:
    """Parse `dropped` in an answer and return reasons by kind and field; leave out malformed entries."""
    found = {}
    for item in value if isinstance(value, list) else ():
        match item:
            case {"kind": str(kind), "field": str(name), "why": str(why)}:
                found[kind[:100], name[:100]] = why[:500]
    return found


def _span(versions: Range) -> str:
    low, high = versions
    return str(low) if low == high else f"{low} to {high}"
