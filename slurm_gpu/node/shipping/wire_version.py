"""Which version of the wire this node and slurm-gpudbd speak (docs/contracts.md, section 5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.wire import WIRE_RANGE

log = logging.getLogger(__name__)

_MAX_LOGGED = 1000

Range = tuple[int, int]
"""The least and the greatest version that one side speaks."""


class WireVersion:
    """Begins with the greatest version that this node speaks; slurm-gpudbd says which it speaks."""

    def __init__(self, own: Range = WIRE_RANGE) -> None:
        self._own = own
        self.version = own[1]
        """What the next shipment speaks."""
        self._told: set[tuple[str, str]] = set()
        self._dropped: set[tuple[str, str]] = set()

    def negotiate(self, theirs: Range | None) -> bool:
        """Take in what they speak, None where they did not say; True where we speak another version now."""
        if theirs is None:
            return False
        common = min(theirs[1], self._own[1])
        if common < max(theirs[0], self._own[0]) or common == self.version:
            return False
        self.version = common
        log.info(
            "slurm-gpudbd speaks version %s of the wire, slurm-gpud %s %s: they go on with %d",
            _span(theirs),
            __version__,
            _span(self._own),
            common,
        )
        return True

    def gap(self, theirs: Range | None) -> str:
        """What to do where `hear` found nothing that both speak."""
        if theirs is None:
            return f"slurm-gpudbd does not speak version {self.version} of the wire"
        older = "slurm-gpudbd" if theirs[1] < self._own[0] else "slurm-gpud on this node"
        return (
            f"slurm-gpudbd speaks version {_span(theirs)} of the wire, slurm-gpud {__version__} speaks "
            f"{_span(self._own)}: upgrade {older}"
        )

    def ignored(self, ignored: Mapping[str, Sequence[str]], version: str | None) -> None:
        """Tell once what slurm-gpudbd did not know of what it was sent."""
        new = {(kind, key) for kind, keys in ignored.items() for key in keys} - self._told
        if new:
            self._told |= new
            log.warning(
                "slurm-gpudbd %s does not know %s, and has not stored it: upgrade it",
                version or "",
                ", ".join(f"{key} of {kind}" for kind, key in sorted(new)),
            )

    def dropped(self, dropped: Mapping[tuple[str, str], str]) -> None:
        """Log once what slurm-gpudbd left out of what it stored, by kind and field with the reason."""
        for (kind, name), why in dropped.items():
            if (kind, name) not in self._dropped and len(self._dropped) < _MAX_LOGGED:
                self._dropped.add((kind, name))
                log.warning("slurm-gpudbd drops %s of %s and stores the rest: %s", name, kind, why)


def read_range(value: Any) -> Range | None:
    """`wire` of an answer, None where it makes no sense."""
    match value:
        case [int(low), int(high)] if 0 < low <= high:
            return low, high
        case _:
            return None


def read_ignored(value: Any) -> dict[str, list[str]]:
    """`ignored` of an answer: names by kind; what makes no sense in it is left out."""
    kinds = value.items() if isinstance(value, dict) else ()
    return {kind: [str(key)[:100] for key in keys] for kind, keys in kinds if isinstance(keys, list) and keys}


def read_dropped(value: Any) -> dict[tuple[str, str], str]:
    """Read `dropped` of an answer: reasons by kind and field; malformed entries are left out."""
    found = {}
    for item in value if isinstance(value, list) else ():
        match item:
            case {"kind": str(kind), "field": str(name), "why": str(why)}:
                found[kind[:100], name[:100]] = why[:500]
    return found


def _span(versions: Range) -> str:
    low, high = versions
    return str(low) if low == high else f"{low} to {high}"
