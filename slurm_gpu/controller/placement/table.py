"""placement.json: the last state of nodes and the last action on them (docs/contracts.md, section 6)."""

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
_VERSION = 1
# Maximum number of classes of the mix in the table.
_MAX_CLASSES = 5


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One managed node."""

    name: str
    zone: str | None
    state: str
    gpus: int
    busy: float
    """GPUs in use; shared GPUs count in fractions."""
    weight: int
    wanted: int | None
    """None if its Weight is not managed: it accepts no jobs, or its Weight was set by hand."""
    site: int
    ours: bool
    """Whether slurm-gpuctld may have set the node's Weight."""
    whole: bool
    by_hand: bool
    useful: float | None = None
    """Free GPUs that jobs of the mix can use; None before any jobs were seen."""
    strands: float | None = None
    """Expected GPUs that the next small job strands; None if none fits or the mix is unknown."""


@dataclass(frozen=True, slots=True)
class MixLine:
    """One class of the recent mix of jobs."""

    gpus: int
    share_mgpu: int
    """Thousandths of one GPU, instead of whole GPUs."""
    cpus: int
    memory_mib: int
    gpu_type: str
    """The GPU type; "" for any type."""
    popularity: float
    """Share (0 to 1) of the mix."""


@dataclass(frozen=True, slots=True)
class LastAct:
    """The last change of weights."""

    at_s: int
    act: str
    nodes: int
    calls: int
    took_s: float


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """All managed nodes in one cycle."""

    as_of_s: int
    host: str
    mode: str
    in_charge: bool
    """Whether slurmctld is active on this host; weights are set only then."""
    cycle_s: float
    """Maximum seconds until the next cycle."""
    nodes: tuple[NodeLine, ...] = ()
    last_act: LastAct | None = None
    mix: tuple[MixLine, ...] = ()
    """The mix that determines the stakes, the most popular class first; empty before any jobs were seen."""

    @property
    def whole_free(self) -> int:
        """Nodes on which a job that needs all their GPUs could start at once."""
        return sum(line.whole for line in self.nodes)

    @property
    def by_hand(self) -> list[str]:
        """Nodes whose Weight is neither original nor ours."""
        return [line.name for line in self.nodes if line.by_hand]

    def age_s(self, now_s: float) -> float:
        """Seconds since the cycle."""
        return max(0.0, now_s - self.as_of_s)

    def is_stale(self, now_s: float) -> bool:
        """Whether its writer has missed several cycles."""
        return self.age_s(now_s) > STALE_CYCLES * self.cycle_s

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        plain = asdict(self)
        return {
            "version": _VERSION,
            **{key: plain[key] for key in ("as_of_s", "host", "mode", "in_charge", "cycle_s")},
            "whole_free": self.whole_free,
            "by_hand": self.by_hand,
            "last_act": plain["last_act"],
            "mix": list(plain["mix"]),
            "nodes": list(plain["nodes"]),
        }


def lines_of(
    plans: Iterable[NodePlan], zones: Mapping[str, str], now: Mapping[str, int]
) -> tuple[NodeLine, ...]:
    """Return an entry for each planned node; `now` are weights set after slurmctld was polled."""
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
                wanted=one.wanted,
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
    """Return the largest classes of a mix."""
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
    """Read the table at `path`; None if it is missing or damaged."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain.pop("version") != _VERSION:
            return None
        act, nodes = plain["last_act"], plain["nodes"]
        return PlacementTable(
            **{key: plain[key] for key in ("as_of_s", "host", "mode", "in_charge", "cycle_s")},
            nodes=tuple(NodeLine(**line) for line in nodes),
            last_act=None if act is None else LastAct(**act),
            mix=tuple(MixLine(**line) for line in plain.get("mix", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
