"""Store each node's original Weight on disk before the first Weight is changed.

The record is in slurmctld's StateSaveLocation, which all slurmctld hosts share. The next slurm-gpuctld, on
this host or a backup, can therefore distinguish the original weights from weights that slurm-gpuctld set,
even after a crash.
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
    """The original Weight of one node, and the weights that slurm-gpuctld uses instead."""

    site: int
    ours: frozenset[int] = frozenset()
    """All weights that slurm-gpuctld may have set instead of the original Weight."""


@dataclass(frozen=True, slots=True)
class OriginalWeights:
    """The record of all nodes; empty when every node has its original Weight again."""

    nodes: Mapping[str, RecordedWeights] = field(default_factory=dict)
    host: str = ""
    """The host whose slurm-gpuctld wrote the record."""
    at_s: int = 0

    def with_nodes(self, nodes: Mapping[str, RecordedWeights]) -> OriginalWeights:
        """Return a copy of the record that contains only these nodes."""
        return replace(self, nodes=nodes)


def path_of(settings: SlurmSettings) -> Path:
    """Return the path of the record in Slurm's StateSaveLocation."""
    return Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld")) / _DIRECTORY / FILE_NAME


def read(path: Path) -> OriginalWeights:
    """Return the record, or an empty record if the file is missing; raise OutsideError on failure."""
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
    """Write the record to disk, or remove the file if the record is empty; raise OutsideError on failure."""
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
    """Return the recorded weights of nodes, given their current weights.

    The original Weight is the value in slurm.conf (`written`), because a reconfiguration restores it. Dynamic
    nodes are not in slurm.conf; their original Weight is the first value that was seen.
    """
    nodes = {}
    for name, weight in weights.items():
        known = memory.nodes.get(name, RecordedWeights(weight))
        nodes[name] = replace(known, site=written.get(name, known.site))
    return nodes


def set_by_hand(
    memory: OriginalWeights, nodes: Mapping[str, RecordedWeights], weights: Mapping[str, int]
) -> Mapping[str, int]:
    """Return, by node, each Weight that is neither the original value nor a value that slurm-gpuctld set."""
    found = {}
    for name, known in nodes.items():
        before, weight = memory.nodes.get(name, known), weights[name]
        # A node may still have its previous original Weight if Slurm has not read a change of slurm.conf yet.
        if weight not in (known.site, before.site) and weight not in known.ours:
            found[name] = weight
    return found
