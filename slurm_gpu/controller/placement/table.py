"""placement.json: what slurm-gpuctld saw of nodes and did to them last (docs/contracts.md, section 6)."""

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
STALE_CYCLES = 3
"""A table that is older than so many of its own cycles says what was, not what is."""
_VERSION = 1
_MOST_TOLD = 5
"""Classes of the mix."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One managed node."""

    name: str
    zone: str | None
    state: str
    gpus: int
    busy: float
    """GPUs in use, parts of shared ones as parts."""
    weight: int
    wanted: int | None
    """None where its Weight is left alone: it takes no jobs, or somebody set it by hand."""
    site: int
    ours: bool
    """Whether its Weight may be one that slurm-gpuctld set."""
    whole: bool
    by_hand: bool
    useful: float | None = None
    """Of its free GPUs, as many as jobs of the mix can use; None where no jobs were seen yet."""
    strands: float | None = None
    """GPUs that the next small job is expected to strand there; None where none has room, or is known."""


@dataclass(frozen=True, slots=True)
class MixLine:
    """One class of what is asked for of late."""

    gpus: int
    share_mgpu: int
    """Thousandths of one GPU, in place of whole ones."""
    cpus: int
    memory_mib: int
    gpu_type: str
    """"" is any."""
    popularity: float
    """Its part (0 to 1) of what is asked for."""


@dataclass(frozen=True, slots=True)
class LastAct:
    """What was last done to weights."""

    at_s: int
    act: str
    nodes: int
    calls: int
    took_s: float


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """All managed nodes at one look."""

    as_of_s: int
    host: str
    mode: str
    in_charge: bool
    """Whether slurmctld is in charge on this host: only then weights are set from here."""
    cycle_s: float
    """Until the next look at the latest."""
    nodes: tuple[NodeLine, ...] = ()
    last_act: LastAct | None = None
    mix: tuple[MixLine, ...] = ()
    """By which it was judged what is at stake, the most popular first; empty where no jobs were seen yet."""

    @property
    def whole_free(self) -> int:
        """Nodes that a job of all their GPUs could have at once."""
        return sum(line.whole for line in self.nodes)

    @property
    def by_hand(self) -> list[str]:
        """Nodes whose Weight is neither the site's nor ours."""
        return [line.name for line in self.nodes if line.by_hand]

    def age_s(self, now_s: float) -> float:
        """Seconds since the look."""
        return max(0.0, now_s - self.as_of_s)

    def is_stale(self, now_s: float) -> bool:
        """Whether whoever writes it has missed several looks."""
        return self.age_s(now_s) > STALE_CYCLES * self.cycle_s

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
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
    """A line for each node of a plan; `now` are weights that were set since slurmctld was asked."""
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
    """What a mix mostly is."""
    mix = jobs.mix()
    ranked = sorted(zip(mix.requests, mix.popularity, strict=True), key=lambda one: -one[1])
    return tuple(
        MixLine(one.gpus, one.share_mgpu, one.cpus, one.memory_mib, one.gpu_type, round(popularity, 3))
        for one, popularity in ranked[:_MOST_TOLD]
    )


def write(path: Path, table: PlacementTable) -> None:
    """Put it there in one step; raises OutsideError where it cannot be written."""
    write_run_file(path, json.dumps(table.to_json()) + "\n")


def read(path: Path) -> PlacementTable | None:
    """The table at `path`; None where there is none that can be read."""
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
