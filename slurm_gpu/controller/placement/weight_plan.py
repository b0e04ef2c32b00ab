"""Plan the weights of managed nodes from the state of slurmctld, the site file and slurm.conf."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from slurm_gpu.config.site import Placement
from slurm_gpu.controller.placement.original_weights import (
    OriginalWeights,
    RecordedWeights,
    as_known,
    set_by_hand,
)
from slurm_gpu.errors import UsageError
from slurm_gpu.placement.node import gpus_by_type
from slurm_gpu.placement.order import FreeCapacity, NodeKind, NodeOrder, Stake
from slurm_gpu.placement.weights import NodeCapacity, WeightScale, layout, level_of
from slurm_gpu.simulate.request import GPU_MGPU
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.text.hostlist import expand


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan for one managed node."""

    node: SlurmNode
    room: NodeCapacity
    known: RecordedWeights
    level: int | None
    """The level of the node's Weight; None if the node accepts no jobs or its Weight was set by hand."""
    target: int | None
    is_by_hand: bool
    stake: Stake | None = None
    """The GPUs at stake according to the job mix; None if the mix is unknown."""

    @property
    def is_whole(self) -> bool:
        """Whether the node accepts jobs and has all its GPUs and enough cores and memory free."""
        return self.room.is_whole and not out_of_service(self.node)


class Managed:
    """Selects the managed nodes according to the site file; raises UsageError if its hostlist is invalid."""

    def __init__(self, placement: Placement) -> None:
        self._partitions = None if placement.partitions is None else frozenset(placement.partitions)
        try:
            self._names = None if placement.nodes is None else frozenset(expand(placement.nodes))
        except ValueError as error:
            raise UsageError(f"slurm-gpu.yaml: placement: nodes: {error}") from None

    def of(self, nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
        """Return the nodes with GPUs that match the partitions and names of the site file."""
        return [
            node
            for node in nodes
            if node.n_gpus
            and (self._partitions is None or not self._partitions.isdisjoint(node.partitions))
            and (self._names is None or node.name in self._names)
        ]


def kind_and_room(node: SlurmNode) -> tuple[NodeKind, FreeCapacity]:
    """Return the kind of a node and its free resources; allocations above its resources are ignored."""
    types, free_mgpu = gpus_by_type(
        {kind.lower(): n for kind, n in node.gpus.items()},
        {kind.lower(): n for kind, n in node.gpus_allocated.items()},
        node.shared_mgpu,
    )
    cpus, memory_mib = node.cpus - node.cpus_allocated, node.memory_mib - node.memory_allocated_mib
    return NodeKind(types, node.cpus, node.memory_mib), FreeCapacity(
        free_mgpu, max(0, cpus), max(0, memory_mib)
    )


@dataclass(frozen=True, slots=True)
class RunningOnNode:
    """The jobs running on one node."""

    n: int
    until_s: float
    """The time at which the last of these jobs reaches its time limit; infinite if a job has no limit."""


def running_on(jobs: Iterable[CountedJob]) -> dict[str, RunningOnNode]:
    """Return the running jobs by node; nodes without jobs are left out."""
    found: dict[str, RunningOnNode] = {}
    for job in jobs:
        if job.phase is not JobPhase.RUNNING:
            continue
        until_s = math.inf if job.end_s is None else float(job.end_s)
        for name in _names(job.nodes):
            one = found.get(name)
            found[name] = (
                RunningOnNode(1, until_s)
                if one is None
                else RunningOnNode(one.n + 1, max(one.until_s, until_s))
            )
    return found


@lru_cache(maxsize=20_000)
def _names(nodes: str) -> tuple[str, ...]:
    """Expand a hostlist; return () if it is invalid."""
    try:
        return tuple(expand(nodes))
    except ValueError:
        return ()


def room_of(
    node: SlurmNode,
    worth: float | None = None,
    whole_rank: int = 0,
    running: RunningOnNode | None = None,
    now_s: float = 0.0,
) -> NodeCapacity:
    """Return the free resources of a node; `running` is None if the jobs on the node are unknown."""
    used = sum(node.gpus_allocated.values()) + node.shared_mgpu / GPU_MGPU
    return NodeCapacity(
        name=node.name,
        gpus=node.n_gpus,
        gpus_used=min(used, node.n_gpus),
        cpus=node.cpus,
        cpus_free=max(0, node.cpus - node.cpus_allocated),
        memory_mib=node.memory_mib,
        memory_free_mib=max(0, node.memory_mib - node.memory_allocated_mib),
        worth=worth,
        whole_rank=whole_rank,
        whole_in_s=None if running is None else running.until_s - now_s,
        one_job=running is not None and running.n == 1,
    )


def plan(
    nodes: Sequence[SlurmNode],
    managed: Sequence[SlurmNode],
    memory: OriginalWeights,
    written: Mapping[str, int],
    before: Mapping[str, int],
    order_of: Callable[[Mapping[NodeKind, int]], NodeOrder | None] = lambda kinds: None,
    running: Mapping[str, RunningOnNode] | None = None,
    now_s: float = 0.0,
) -> list[NodePlan]:
    """Return the plan for each managed node, in the given order.

    `written` contains the weights in slurm.conf, and `before` the levels of the previous plan. `order_of`
    returns the order of nodes of the given kinds, or None to order nodes by fullness. `running` contains the
    jobs on each node, which determine when all its GPUs become free; None if the jobs are unknown.
    """
    weights = {node.name: node.weight for node in managed}
    known = as_known(memory, weights, written)
    hand = set_by_hand(memory, known, weights)
    stakes, rooms, whole_ranks = _judged(managed, order_of, {} if running is None else running, now_s)
    scale = WeightScale.of(rooms.values(), whole_ranks, timed=running is not None)
    ours = layout(
        {known[name].site for name in weights if name not in hand},
        _competing_weights(nodes, managed),
        scale.levels,
    )
    lines = []
    for node in managed:
        name, one = node.name, known[node.name]
        if name in hand or out_of_service(node):
            lines.append(NodePlan(node, rooms[name], one, None, None, name in hand, stakes.get(name)))
            continue
        mine = ours[one.site]
        last = before.get(name)
        if last is None and node.weight != one.site and node.weight in mine:
            last = mine.index(node.weight)  # the previous process set this Weight
        level = level_of(rooms[name], scale, last)
        one = replace(one, ours=one.ours | set(mine))
        lines.append(NodePlan(node, rooms[name], one, level, mine[level], False, stakes.get(name)))
    return lines


def _judged(
    managed: Sequence[SlurmNode],
    order_of: Callable[[Mapping[NodeKind, int]], NodeOrder | None],
    running: Mapping[str, RunningOnNode],
    now_s: float,
) -> tuple[dict[str, Stake], dict[str, NodeCapacity], int]:
    """Return the GPUs at stake and the free capacity by node, and the number of ranks of whole nodes."""
    found = [kind_and_room(node) for node in managed]
    order = order_of(Counter(kind for kind, _ in found))
    if order is None:
        known = {node.name: running.get(node.name) for node in managed}
        return {}, {node.name: room_of(node, None, 0, known[node.name], now_s) for node in managed}, 1
    stakes: dict[str, Stake] = {}
    rooms: dict[str, NodeCapacity] = {}
    for node, (kind, room) in zip(managed, found, strict=True):
        stake = stakes[node.name] = order.stake(kind, room)
        worth, rank = order.gpus_left(stake), order.whole_rank(kind)
        rooms[node.name] = room_of(node, worth, rank, running.get(node.name), now_s)
    return stakes, rooms, order.n_whole_ranks


def _competing_weights(nodes: Iterable[SlurmNode], managed: Sequence[SlurmNode]) -> set[int]:
    """Return the weights of unmanaged nodes that share a partition with managed nodes."""
    names = {node.name for node in managed}
    partitions = {partition for node in managed for partition in node.partitions}
    return {
        node.weight for node in nodes if node.name not in names and not partitions.isdisjoint(node.partitions)
    }
