"""Which Weight of each node is the site's own: written to disk before the first of ours is set.

It lies in slurmctld's StateSaveLocation, which the hosts of slurmctld share, so that whichever
slurm-gpuctld comes next, here or on the backup's host, after whatever end of the last one, can tell the
site's from ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.files.state_file import read_state, write_state
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.text.hostlist import compress, expand

FILE_NAME = "weights.json"
_VERSION = 1
_DIRECTORY = "slurm-gpu"


@dataclass(frozen=True, slots=True)
class RecordedWeights:
    """The weights of one node."""

    site: int
    ours: frozenset[int] = frozenset()
    """All that may have been set in its place."""


@dataclass(frozen=True, slots=True)
class OriginalWeights:
    """What is known of nodes whose weights were set; empty once all have the site's own again."""

    nodes: Mapping[str, RecordedWeights] = field(default_factory=dict)
    host: str = ""
    """Whose slurm-gpuctld wrote it."""
    at_s: int = 0

    def with_nodes(self, nodes: Mapping[str, RecordedWeights]) -> OriginalWeights:
        """The same of other nodes."""
        return replace(self, nodes=nodes)


def path_of(settings: SlurmSettings) -> Path:
    """Where the memory of this Slurm lies."""
    return Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld")) / _DIRECTORY / FILE_NAME


def read(path: Path) -> OriginalWeights:
    """The memory at `path`, empty where there is none; raises OutsideError where it cannot be read."""
    advice = (
        "; it says which Weight of each node is the site's own: "
        "mend it, or move it away and run `scontrol reconfigure`"
    )
    found = read_state(path, lambda plain: _from_plain(path, plain), advice)
    return OriginalWeights() if found is None else found


def _from_plain(path: Path, plain: Any) -> OriginalWeights:
    if plain["version"] != _VERSION:
        raise OutsideError(f"{path} was written by another version of slurm-gpu ({plain['version']})")
    nodes: dict[str, RecordedWeights] = {}
    for one in plain["classes"]:
        known = RecordedWeights(int(one["site"]), frozenset(map(int, one["ours"])))
        nodes |= dict.fromkeys(expand(one["nodes"]), known)
    return OriginalWeights(nodes, str(plain["host"]), int(plain["at_s"]))


def write(path: Path, memory: OriginalWeights, owner_uid: int) -> None:
    """Have it on disk before this returns, of an empty memory nothing; raises OutsideError."""
    if memory.nodes:
        write_state(path, _plain(memory), owner_uid, 0o644)
        return
    with outside(path):
        path.unlink(missing_ok=True)


def _plain(memory: OriginalWeights) -> dict[str, Any]:
    by_class: dict[RecordedWeights, list[str]] = {}
    for name, known in memory.nodes.items():
        by_class.setdefault(known, []).append(name)
    return {
        "version": _VERSION,
        "host": memory.host,
        "at_s": memory.at_s,
        "classes": [
            {"nodes": compress(names), "site": known.site, "ours": sorted(known.ours)}
            for known, names in sorted(by_class.items(), key=lambda item: (item[0].site, sorted(item[1])))
        ],
    }


def as_known(
    memory: OriginalWeights, weights: Mapping[str, int], written: Mapping[str, int]
) -> dict[str, RecordedWeights]:
    """What is known of nodes with these weights.

    The site's own is what slurm.conf says (`written`), since that is what a reconfiguration brings back; of
    nodes that it does not name (dynamic ones), what they had when they were first seen.
    """
    nodes = {}
    for name, weight in weights.items():
        known = memory.nodes.get(name, RecordedWeights(weight))
        nodes[name] = replace(known, site=written.get(name, known.site))
    return nodes


def set_by_hand(
    memory: OriginalWeights, nodes: Mapping[str, RecordedWeights], weights: Mapping[str, int]
) -> Mapping[str, int]:
    """Those nodes whose Weight is neither the site's nor ours, with that Weight: somebody typed it."""
    found = {}
    for name, known in nodes.items():
        before, weight = memory.nodes.get(name, known), weights[name]
        # The site's of before: slurm.conf was changed, and Slurm has not read it yet.
        if weight not in (known.site, before.site) and weight not in known.ours:
            found[name] = weight
    return found
