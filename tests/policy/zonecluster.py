"""Hypothesis strategies for clusters with zones, and constraints as Slurm's manual defines them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from slurm_gpu.config.site import Placement, Zone
from slurm_gpu.controller.snapshot.zone_table import table, zone_nodes
from slurm_gpu.placement.zones import JobScale
from slurm_gpu.slurm.client import SlurmNode

from .model import Request

ZONES = ("zone1", "zone2", "rack.3")
_BRACKET = re.compile(r"\[([^\[\]]*)\]$")
_NAME = re.compile(r"[^&|()\[\]*,\s]+")


def make_node(
    name: str,
    zone: str | None,
    features: Sequence[str],
    partitions: Sequence[str],
    *,
    gpus: int = 4,
    cpus: int = 32,
    memory_mib: int = 100_000,
) -> SlurmNode:
    kind = "a100" if "a100" in features else "v100"
    return SlurmNode(
        name=name,
        address=name,
        state="idle",
        reason=None,
        cpus_allocated=0,
        memory_allocated_mib=0,
        gpus={kind: gpus},
        gpus_allocated={kind: 0},
        shards=gpus * 4,
        shards_allocated=0,
        features=[*features, *([zone] if zone else [])],
        partitions=list(partitions),
        cpus=cpus,
        memory_mib=memory_mib,
    )


@dataclass(frozen=True)
class Cluster:
    """Nodes, each in one zone or none."""

    nodes: tuple[SlurmNode, ...]
    demand: int = 0
    roles: tuple[str, ...] = ("small", "medium", "large")

    def lines(self, mode: str) -> list[str]:
        """Return the lines of the snapshot."""
        zones = {
            name: Zone(",".join(node.name for node in self.of(name)), role)
            for name, role in zip(ZONES, self.roles, strict=True)
            if self.of(name)
        }
        found = table(
            Placement(mode), zone_nodes(zones, self.nodes), self.nodes, dict.fromkeys(JobScale, self.demand)
        )
        return [] if found is None else list(found.lines())

    def of(self, zone: str) -> list[SlurmNode]:
        return [node for node in self.nodes if zone in node.features]

    def in_partition(self, name: str) -> list[SlurmNode]:
        return [node for node in self.nodes if name in node.partitions]

    def most_gpus(self, partitions: Sequence[str]) -> int:
        return max((node.n_gpus for name in partitions for node in self.in_partition(name)), default=0)


_NODES = st.builds(
    lambda zone, kind, nvlink, partitions, gpus, cpus, mib: (
        zone,
        [kind, *(["nvlink"] if nvlink else [])],
        partitions,
        {"gpus": gpus, "cpus": cpus, "memory_mib": mib},
    ),
    st.sampled_from([*ZONES, None]),
    st.sampled_from(["a100", "a100", "v100"]),
    st.booleans(),
    st.sampled_from([["gpu", "long"], ["gpu", "long"], ["gpu"], ["long"]]),
    st.sampled_from([4, 4, 8]),
    st.sampled_from([32, 32, 16]),
    st.sampled_from([100_000, 100_000, 50_000]),
)
CLUSTERS = st.builds(
    lambda groups, demand: Cluster(
        tuple(
            make_node(f"n{number}", zone, features, partitions, **amounts)
            for number, (zone, features, partitions, amounts) in enumerate(
                itertools.chain.from_iterable([shape] * count for shape, count in groups)
            )
        ),
        demand,
    ),
    st.lists(st.tuples(_NODES, st.integers(1, 6)), min_size=2, max_size=6),
    st.integers(0, 50_000),
)


@st.composite
def distributed(draw: st.DrawFn) -> Request:
    """Draw a job on several nodes, which usually fits some zone."""
    form = draw(st.sampled_from(["per_node", "per_node", "per_job", "per_task"]))
    nodes = draw(st.integers(2, 4)) if form == "per_node" else draw(st.sampled_from([None, 2, 3]))
    gpus = draw(st.integers(5, 12) if form == "per_job" else st.integers(1, 4))
    memory = draw(st.sampled_from([None, None, "mib_per_node", "mib_per_cpu", "mib_per_gpu"]))
    tasks = draw(st.integers(2, 8)) if form == "per_task" else draw(st.sampled_from([None, None, 4]))
    job = Request(
        uid=1001,
        account="vision",
        partition=draw(st.sampled_from(["gpu", "gpu", "long", "long,gpu"])),
        nodes=nodes,
        most_nodes=None if nodes is None else nodes + draw(st.sampled_from([0, 0, 1])),
        n_tasks=tasks,
        cpus_per_task=draw(st.sampled_from([None, 2, 24])),
        gpu_type=draw(st.sampled_from([None, "a100"])),
    )
    amounts: dict[str, Any] = {form: gpus}
    if memory is not None:
        amounts[memory] = draw(st.sampled_from([1000, 20_000, 60_000]))
    return replace(job, **amounts)


PLAIN = st.sampled_from(
    ["a100", "nvlink", "a100&nvlink", "a100|v100", "nvlink|v100", "a100|missing", "missing"]
)
OWN = st.one_of(
    st.none(),
    PLAIN,
    PLAIN,
    PLAIN,
    st.sampled_from(["[a100|v100]", "a100*2", "(a100|v100)", "(a100|v100)&nvlink", "a100&nvlink|v100"])
    | st.sampled_from(
        ["a100,nvlink", "zone1", "a100&zone2", "a100&", "|", " ", "a100 ", "%d", "[", "((a100))"]
    )
    | st.text(alphabet="a1&|()[]*, zone2", max_size=12),
)


def with_zones(snapshot: str, mode: str) -> str:
    """Add a cluster with two zones of eight nodes to a snapshot."""
    body, _, end = snapshot.rpartition("\nend ")
    return "\n".join((body, *_TWO_ZONES.lines(mode), f"end {end}"))


_TWO_ZONES = Cluster(
    tuple(make_node(f"{zone}-{n}", zone, ["a100"], ["gpu", "long"]) for zone in ZONES[:2] for n in range(8))
)


def is_accepted_by_slurm(constraint: str) -> bool:
    """Return whether Slurm accepts a constraint: at most one pair of parentheses, then one bracket.

    Measured on Slurm 22.05; tests/lab/test_zones.py checks it on any version.
    """
    bracket = _BRACKET.search(constraint)
    if bracket is None or constraint.count("[") != 1:
        return False
    before, alternatives = constraint[: bracket.start()], bracket[1].split("|")
    if before:
        if not before.endswith("&"):
            return False
        before = before[:-1]
        if before.startswith("(") and before.endswith(")"):
            before = before[1:-1]
    names = re.split("[&|]", before) if before else []
    return all(_NAME.fullmatch(name) for name in [*names, *alternatives])


def allowed(constraint: str, zone: str, node: SlurmNode) -> bool:
    """Return whether a node meets a constraint for which this zone is chosen."""
    before = _BRACKET.sub("", constraint).removesuffix("&")
    return zone in node.features and (not before or satisfies(before.strip("()"), node))


def satisfies(own: str, node: SlurmNode) -> bool:
    """Return whether a node meets a constraint with either & or | between its names."""
    if "|" in own:
        return any(name in node.features for name in own.split("|"))
    return all(name in node.features for name in own.split("&"))


def has_room_for(node: SlurmNode, job: Request, nodes: int) -> bool:
    """Return whether a node has room for an even share of the job."""
    kind = job.named_type
    tasks = math.ceil(job.tasks / nodes)
    gpus = max(math.ceil(job.asked_mgpu / 1000 / nodes), tasks * (job.per_task or 0))
    cpus = max(math.ceil(job.cpus / nodes), tasks * (job.cpus_per_task or 1))
    return (
        (kind is None or node.gpus.get(kind, 0) >= gpus)
        and node.n_gpus >= gpus
        and node.cpus >= cpus
        and node.memory_mib >= math.ceil(job.mib / nodes)
    )
