"""Write and read placement.json, the last state of the managed nodes (docs/contracts.md, section 6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.controller.placement.weight_plan import NodePlan
from slurm_gpu.controller.queue.job_mix import JobMix
from slurm_gpu.controller.run_file import write_run_file

FILE_NAME = "placement.json"
# A table is outdated after this many cycles of its writer.
STALE_CYCLES = 3
_VERSION = 2
# Maximum number of classes of the job mix in the table.
_MAX_CLASSES = 5


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One managed node."""

    name: str
    zone: str | None
    state: str
    gpus: int
    busy: float
    """GPUs in use; a shared GPU counts as a fraction."""
    weight: int
    target: int | None
    """The required Weight; None if the node accepts no jobs or its Weight was set by hand."""
    site: int
    ours: bool
    """Whether the current Weight may have been set by slurm-gpuctld."""
    whole: bool
    by_hand: bool
    useful: float | None = None
    """Number of free GPUs that jobs in the recent mix can use; None before any jobs were seen."""
    strands: float | None = None
    """Expected number of GPUs that the next small job strands; None if unknown or if no small job fits."""


@dataclass(frozen=True, slots=True)
class MixLine:
    """One class of the recent mix of jobs."""

    gpus: int
    share_mgpu: int
    """Part of one GPU, in thousandths, that the jobs request instead of whole GPUs."""
    cpus: int
    memory_mib: int
    gpu_type: str
    """The GPU type; "" for any type."""
    popularity: float
    """Share of the mix, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class LastAction:
    """The last change of weights."""

    at_s: int
    action: str
    nodes: int
    calls: int
    took_s: float


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """The state of all managed nodes in one cycle."""

    as_of_s: int
    host: str
    mode: str
    in_charge: bool
    """Whether the slurmctld of this host is active; otherwise no weights are set."""
    cycle_s: float
    """Maximum seconds until the next cycle."""
    nodes: tuple[NodeLine, ...] = ()
    last_action: LastAction | None = None
    mix: tuple[MixLine, ...] = ()
    """The most frequent classes of the job mix, in descending order; empty before any jobs were seen."""

    @property
    def whole_free(self) -> int:
        """Number of nodes on which a job that needs all GPUs of the node could start at once."""
        return sum(line.whole for line in self.nodes)

    @property
    def by_hand(self) -> list[str]:
        """Nodes whose Weight is neither the original value nor a value that slurm-gpuctld set."""
        return [line.name for line in self.nodes if line.by_hand]

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the cycle that the table describes."""
        return max(0.0, now_s - self.as_of_s)

    def is_stale(self, now_s: float) -> bool:
        """Return whether the writer of the table has missed several cycles."""
        return self.age_s(now_s) > STALE_CYCLES * self.cycle_s

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        plain = asdict(self)
        return {
            "version": _VERSION,
            **{key: plain[key] for key in ("as_of_s", "host", "mode", "in_charge", "cycle_s")},
            "whole_free": self.whole_free,
            "by_hand": self.by_hand,
            "last_action": plain["last_action"],
            "mix": list(plain["mix"]),
            "nodes": list(plain["nodes"]),
        }


def lines_of(
    plans: Iterable[NodePlan], zones: Mapping[str, str], now: Mapping[str, int]
) -> tuple[NodeLine, ...]:
    """Return an entry for each planned node; `now` contains the weights set after the poll of slurmctld."""
    lines = []
    for one in plans:
        weight = now.get(one.node.name, one.node.weight)
        lines.append(
            NodeLine(
                name=one.node.name,
                zone=zones.get(one.node.name),
                state=one.node.state,
                gpus=one.room.gpus,
                busy=round(one.room.gpus_used, 3),
                weight=weight,
                target=one.target,
                site=one.known.site,
                ours=weight != one.known.site and weight in one.known.ours,
                whole=one.is_whole,
                by_hand=one.is_by_hand,
                useful=None if one.stake is None else round(one.stake.useful, 3),
                strands=None
                if one.stake is None or one.stake.strands is None
                else round(one.stake.strands, 3),
            )
        )
    return tuple(lines)


def mix_lines(jobs: JobMix) -> tuple[MixLine, ...]:
    """Return the most frequent classes of the job mix."""
    mix = jobs.mix()
    ranked = sorted(zip(mix.requests, mix.popularity, strict=True), key=lambda one: -one[1])
    return tuple(
        MixLine(one.gpus, one.share_mgpu, one.cpus, one.memory_mib, one.gpu_type, round(popularity, 3))
        for one, popularity in ranked[:_MAX_CLASSES]
    )


def write(path: Path, table: PlacementTable) -> None:
    """Replace the file atomically; raise OutsideError if it cannot be written."""
    write_run_file(path, json.dumps(table.to_json()) + "\n")


def read(path: Path) -> PlacementTable | None:
    """Return the table at `path`, or None if the file is missing or damaged."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain.pop("version") != _VERSION:
            return None
        action, nodes = plain["last_action"], plain["nodes"]
        return PlacementTable(
            **{key: plain[key] for key in ("as_of_s", "host", "mode", "in_charge", "cycle_s")},
            nodes=tuple(NodeLine(**line) for line in nodes),
            last_action=None if action is None else LastAction(**action),
            mix=tuple(MixLine(**line) for line in plain.get("mix", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
