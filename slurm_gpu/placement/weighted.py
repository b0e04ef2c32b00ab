"""Placement rules for models and benchmarks that apply node weights as slurm-gpuctld does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.choice import NodeShare, first_device, first_whole, fitting
from slurm_gpu.placement.mix import Mix, coarse
from slurm_gpu.placement.order import FreeCapacity, NodeKind, NodeOrder
from slurm_gpu.placement.state import Mask, Nodes
from slurm_gpu.placement.weights import NodeCapacity, WeightScale, level_of
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest

# Interval at which nodes are rescored if only the remaining time of their jobs changed.
_TIME_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Node:
    """The constant properties of a node."""

    kind: NodeKind
    order: tuple[int, ...]
    """Indices of its GPUs ordered by type, as in a `NodeKind`."""


class NodeWeights:
    """Choose the lightest nodes with room; among equals, as in Slurm, those with the fewest free CPUs.

    Levels, bands and ranks are those of the daemon; without a mix, levels depend only on fullness. The
    remaining time of jobs counts if the nodes report it and `timed` is true. Weights are updated once per
    `every` decisions, since Slurm uses the previous weights in between.
    """

    def __init__(
        self, mix: Mix | None, n_seen: float = 1000.0, every: int = 1, *, timed: bool = True
    ) -> None:
        self._mix, self._n_seen, self._every, self._timed = mix, n_seen, every, timed
        self._order: NodeOrder | None = None
        self._nodes: list[_Node] = []
        self._seen: Nodes | None = None
        self._level: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._decisions = 0
        self._timed_s = 0.0
        """The time at which all nodes with jobs were last rescored."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Break ties by index; a share goes to the first GPU with enough free capacity."""
        if self._seen is None or not nodes.is_same_cluster(self._seen):
            self._begin(nodes)
        if self._decisions >= self._every:
            self._rescore(nodes)
        fits = fitting(nodes, request, among)
        if len(fits) < request.nodes:
            return ()
        self._decisions += 1
        keys = nodes.free_cpus[fits], self._level[fits], self._rank(request)[fits]
        first = fits[np.lexsort(keys)[: request.nodes]]
        return tuple(
            NodeShare(node, (first_device(nodes, node, request),))
            if request.share_mgpu
            else NodeShare(node, first_whole(nodes, node, request))
            for node in first.tolist()
        )

    def _rank(self, request: ResourceRequest) -> NDArray[np.int64]:
        """(n,): rank that takes precedence over the weight; the same for all nodes."""
        return np.zeros(len(self._nodes), dtype=np.int64)

    def _rescore(self, nodes: Nodes) -> None:
        last, self._seen, self._decisions = self._seen, nodes, 0
        differs = np.ones(len(nodes), dtype=np.bool_)
        if last is not None:
            differs = (nodes.free_mgpu != last.free_mgpu).any(axis=1)
            differs |= (nodes.free_cpus != last.free_cpus) | (nodes.free_memory_mib != last.free_memory_mib)
        running = nodes.running
        if self._scale.timed and running is not None and running.now_s >= self._timed_s + _TIME_EVERY_S:
            differs |= running.n_jobs > 0
            self._timed_s = running.now_s
        for index in np.flatnonzero(differs).tolist():
            before = None if last is None else int(self._level[index])
            self._level[index] = level_of(self._room(nodes, index), self._scale, before)

    def _begin(self, nodes: Nodes) -> None:
        self._seen, self._decisions, self._timed_s = None, self._every, -_TIME_EVERY_S
        self._level = np.zeros(len(nodes), dtype=np.int64)
        self._nodes, kinds = [], dict[NodeKind, int]()
        for index, n_gpus in enumerate(nodes.n_gpus.tolist()):
            types = [nodes.types[code] for code in nodes.gpu_type[index, :n_gpus].tolist()]
            order = tuple(sorted(range(n_gpus), key=types.__getitem__))
            kind = NodeKind(
                tuple(types[at] for at in order), int(nodes.cpus[index]), int(nodes.memory_mib[index])
            )
            kinds[kind] = kinds.get(kind, 0) + 1
            self._nodes.append(_Node(kind, order))
        self._order = None if self._mix is None else NodeOrder(self._mix, self._n_seen, kinds)
        largest = max((len(kind.gpu_types) for kind in kinds), default=1)
        ranks = 1 if self._order is None else self._order.n_whole_ranks
        self._scale = WeightScale(max(largest, 1), ranks, self._timed and nodes.running is not None)
        self._rescore(nodes)

    def _room(self, nodes: Nodes, index: int) -> NodeCapacity:
        one = self._nodes[index]
        free_mgpu = nodes.free_mgpu[index].tolist()
        cpus, memory_mib = int(nodes.free_cpus[index]), int(nodes.free_memory_mib[index])
        worth, rank = None, 0
        if self._order is not None and one.kind.gpu_types:
            room = FreeCapacity(tuple(free_mgpu[at] for at in one.order), cpus, memory_mib)
            worth = self._order.gpus_left(self._order.stake(one.kind, room))
            rank = self._order.whole_rank(one.kind)
        n_gpus, running = len(one.kind.gpu_types), nodes.running
        return NodeCapacity(
            name=nodes.names[index],
            gpus=n_gpus,
            gpus_used=n_gpus - sum(free_mgpu) / GPU_MGPU,
            cpus=one.kind.cpus,
            cpus_free=cpus,
            memory_mib=one.kind.memory_mib,
            memory_free_mib=memory_mib,
            worth=worth,
            whole_rank=rank,
            whole_in_s=None if running is None else float(running.until_s[index]) - running.now_s,
            one_job=running is not None and int(running.n_jobs[index]) == 1,
        )


class NodeWeightsByType(NodeWeights):
    """Like `NodeWeights`, but each job uses types of GPUs in its own order, as job_submit.lua requests.

    Nodes are grouped by the type of their first GPU. Jobs for several nodes and jobs of rare classes have no
    order of their own.
    """

    def _begin(self, nodes: Nodes) -> None:
        super()._begin(nodes)
        self._ranks: dict[ResourceRequest, NDArray[np.int64]] = {}

    def _rank(self, request: ResourceRequest) -> NDArray[np.int64]:
        request = coarse(request)
        if self._order is None or request not in self._order.common:
            return super()._rank(request)
        if request not in self._ranks:
            groups: dict[str, dict[NodeKind, int]] = {}
            for node in self._nodes:
                kinds = groups.setdefault(_first_type(node.kind), {})
                kinds[node.kind] = kinds.get(node.kind, 0) + 1
            rank = {name: place for place, name in enumerate(self._order.ranked(request, groups))}
            of_node = [_first_type(node.kind) for node in self._nodes]
            self._ranks[request] = np.array([rank[name] for name in of_node], dtype=np.int64)
        return self._ranks[request]


def _first_type(kind: NodeKind) -> str:
    """Return the type of the node's first GPU; "" if it has none."""
    return next(iter(kind.gpu_types), "")
