"""The record of each node's original Weight, written to disk before the first weight is changed.

It is stored in slurmctld's StateSaveLocation, which all slurmctld hosts share. The next slurm-gpuctld, here
or on a backup, can therefore distinguish original weights from ours, however the last one ended.
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
    """All weights that slurm-gpuctld may have set instead."""


@dataclass(frozen=True, slots=True)
class OriginalWeights:
    """The recorded nodes; empty when all have their original Weight again."""

    nodes: Mapping[str, RecordedWeights] = field(default_factory=dict)
    host: str = ""
    """The host whose slurm-gpuctld wrote it."""
    at_s: int = 0

    def with_nodes(self, nodes: Mapping[str, RecordedWeights]) -> OriginalWeights:
        """Return the record with other nodes."""
        return replace(self, nodes=nodes)


def path_of(settings: SlurmSettings) -> Path:
    """Return the path of the record for this Slurm."""
    return Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld")) / _DIRECTORY / FILE_NAME


def read(path: Path) -> OriginalWeights:
    """Read the record at `path`, empty if there is none; raise OutsideError if it cannot be read."""
    advice = (
        "; it stores the original Weight of each node: "
        "repair it, or move it away and run `scontrol reconfigure`"
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
    """Write the record to disk, or remove it if it is empty; raise OutsideError."""
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
    """Return the recorded weights of nodes, given their actual weights.

    The original Weight is that of slurm.conf (`written`), because a reconfiguration restores it. For nodes
    that slurm.conf does not name (dynamic nodes), it is the Weight when first seen.
    """
    nodes = {}
    for name, weight in weights.items():
        known = memory.nodes.get(name, RecordedWeights(weight))
        nodes[name] = replace(known, site=written.get(name, known.site))
    return nodes


def set_by_hand(
    memory: OriginalWeights, nodes: Mapping[str, RecordedWeights], weights: Mapping[str, int]
) -> Mapping[str, int]:
    """Return the nodes, with their Weight, whose Weight is neither original nor ours."""
    found = {}
    for name, known in nodes.items():
        before, weight = memory.nodes.get(name, known), weights[name]
        # This is the previous original Weight: slurm.conf was changed, but Slurm has not read it yet.
        if weight not in (known.site, before.site) and weight not in known.ours:
            found[name] = weight
    return found
