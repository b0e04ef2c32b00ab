"""Measure how many free GPUs the recent mix of jobs cannot use, and how each placement changes this number.

Both measures sum over the classes of a mix, weighted by popularity.

FGD is the measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent", USENIX ATC 2023. All free GPUs of a node are stranded for a class if the node
cannot host one job of the class; otherwise only GPUs with too little free capacity for it are stranded. This
module treats memory as the paper treats CPUs, and omits classes without GPUs, for which FGD regards all GPUs
as stranded. Neither difference changes which placement is best.

FED, the project's own measure, also requires enough of the other resources. A class can use only as many of a
node's GPUs as the node's free CPUs and memory suffice for. On a node with eight free GPUs and CPUs for one
single-GPU job, FED counts seven stranded GPUs, and FGD counts none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.needs import Needs
from slurm_gpu.placement.state import Mask, Nodes
from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest

Floats = NDArray[np.float64]

# Limits the size of temporary arrays to a few tens of MB.
_ROWS_AT_ONCE = 4096
# Type code of a missing GPU.
_NONE = -2
# Number of decimal digits to which sums in mgpu are rounded: equal sums compare equal regardless of the order
# of summation.
_DECIMALS = 6


class StrandedMeasure(Enum):
    """The definition of stranded GPUs."""

    FGD = "fgd"
    FED = "fed"
    """Our measure, which also counts GPUs for which too few CPUs or too little memory is free."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Real or hypothetical states of nodes, in k rows with g GPUs each."""

    gpu_type: NDArray[np.int16]
    free_mgpu: NDArray[np.int32]
    cpus: NDArray[np.int64]
    memory_mib: NDArray[np.int64]

    @classmethod
    def of(cls, nodes: Nodes, at: NDArray[np.intp]) -> _Rows:
        return cls(nodes.gpu_type[at], nodes.free_mgpu[at], nodes.free_cpus[at], nodes.free_memory_mib[at])


@dataclass(frozen=True, eq=False)
class Candidates:
    """All c distinct ways to place one node's part of a request."""

    node: NDArray[np.intp]
    device: NDArray[np.intp]
    """The GPU of a share; otherwise -1, since whole GPUs are always the first free ones."""
    increase_mgpu: Floats
    """Newly stranded capacity; negative if a placement uses GPUs that few other classes can use."""


def stranded_mgpu(
    nodes: Nodes, mix: Mix, measure: StrandedMeasure = StrandedMeasure.FED, at: NDArray[np.intp] | None = None
) -> Floats:
    """Return the expected stranded part of each node's free GPUs, in mgpu; 0 for nodes that are down.

    If `at` is given, only these nodes are measured.
    """
    at = np.arange(len(nodes)) if at is None else at
    found = np.zeros(len(at))
    up = np.flatnonzero(nodes.up[at])
    found[up] = _stranded(_Rows.of(nodes, at[up]), nodes.types, mix, measure)
    return found


def candidates(
    nodes: Nodes,
    request: ResourceRequest,
    mix: Mix,
    measure: StrandedMeasure = StrandedMeasure.FED,
    among: NDArray[np.intp] | None = None,
) -> Candidates:
    """Return all ways to place one node's part of a request; `among` limits the nodes."""
    fits = np.flatnonzero(nodes.fits(request))
    if among is not None:
        fits = np.intersect1d(fits, among, assume_unique=True)
    usable = nodes.usable_mgpu(request.gpu_type)[fits]
    if request.share_mgpu:
        row, device = np.nonzero(
            _first_of_equals(usable, nodes.gpu_type[fits]) & (usable >= request.share_mgpu)
        )
        at = fits[row]
        free = nodes.free_mgpu[at]
        free[np.arange(len(at)), device] -= np.int32(request.share_mgpu)
    else:
        row, at, device = np.arange(len(fits)), fits, np.full(len(fits), -1, dtype=np.intp)
        free = nodes.free_mgpu[at]
        if request.gpus:
            whole = usable == GPU_MGPU
            free[whole & (np.cumsum(whole, axis=1) <= request.gpus)] = 0
    now = _Rows.of(nodes, fits)
    then = _Rows(
        nodes.gpu_type[at],
        free,
        nodes.free_cpus[at] - request.cpus,
        nodes.free_memory_mib[at] - request.memory_mib,
    )
    before, after = (_stranded(rows, nodes.types, mix, measure) for rows in (now, then))
    return Candidates(at, device, np.round(after - before[row], _DECIMALS))


def _first_of_equals(free: NDArray[np.int32], gpu_type: NDArray[np.int16]) -> Mask:
    """(k, g): mark the first of each node's GPUs with the same type and free capacity."""
    kind = free.astype(np.int64) * (len(np.unique(gpu_type)) + 1) + gpu_type
    first: Mask = np.ones(free.shape, dtype=np.bool_)
    for device in range(1, free.shape[1]):
        first[:, device] = (kind[:, :device] != kind[:, device : device + 1]).all(axis=1)
    return first


def _stranded(rows: _Rows, types: tuple[str, ...], mix: Mix, measure: StrandedMeasure) -> Floats:
    if not mix.requests:
        return np.zeros(len(rows.cpus))
    found = np.empty(len(rows.cpus))
    for begin in range(0, len(found), _ROWS_AT_ONCE):
        at = slice(begin, begin + _ROWS_AT_ONCE)
        part = _Rows(rows.gpu_type[at], rows.free_mgpu[at], rows.cpus[at], rows.memory_mib[at])
        found[at] = (
            part.free_mgpu.sum(axis=1) - _useful(part, types, mix.needs, measure) @ mix.needs.popularity
        )
    return found


def _useful(rows: _Rows, types: tuple[str, ...], needs: Needs, measure: StrandedMeasure) -> Floats:
    """(k, m): free GPU capacity of each node that each class can use."""
    enough = rows.free_mgpu[:, :, np.newaxis] >= needs.per_gpu_mgpu  # (k, g, d)
    for level, gpu_type in enumerate(needs.gpu_types):
        if gpu_type:
            enough[:, :, level] &= rows.gpu_type == (types.index(gpu_type) if gpu_type in types else _NONE)
    n_enough = np.count_nonzero(enough, axis=1)[:, needs.level]
    useful = np.einsum("kg,kgd->kd", rows.free_mgpu, enough, dtype=np.float64)[:, needs.level]
    cpus, memory_mib = rows.cpus[:, np.newaxis], rows.memory_mib[:, np.newaxis]
    if measure is StrandedMeasure.FED:
        for free, each in ((cpus, needs.cpus), (memory_mib, needs.memory_mib)):
            fed = np.where(each > 0, free * (needs.mgpu / np.maximum(each, 1)), np.inf)
            useful = np.minimum(useful, fed)
    hosts = (n_enough >= needs.n_gpus) & (cpus >= needs.cpus) & (memory_mib >= needs.memory_mib)
    return np.where(hosts, useful, 0.0)


@dataclass(frozen=True, eq=False)
class Best:
    """The best way to place one node's part of a request on each node."""

    increase_mgpu: Floats
    """(n,): as in `Candidates`; inf if the part does not fit on the node."""
    device: NDArray[np.intp]
    """(n,): the GPU of a share, the one with the least free capacity among equals; otherwise -1."""


class Scorer:
    """Score all nodes for each request in turn, and rescore only the nodes that changed.

    States may be passed in any order; the result does not depend on earlier calls.
    """

    def __init__(self, mix: Mix, measure: StrandedMeasure = StrandedMeasure.FED) -> None:
        self.mix, self.measure = mix, measure
        self._nodes: Nodes | None = None
        self._tick = 0
        self._changed = np.zeros(0, dtype=np.int64)
        """(n,): the tick of each node's last change."""
        self._known: dict[ResourceRequest, tuple[int, Best]] = {}

    def best(self, nodes: Nodes, request: ResourceRequest) -> Best:
        """Return the best placement of one node's part on each node; valid until the next call."""
        self._see(nodes)
        request = replace(request, nodes=1, one_zone=False)
        seen, best = self._known.get(request, (-1, None))
        if best is None:
            best = Best(np.full(len(nodes), np.inf), np.full(len(nodes), -1, dtype=np.intp))
        stale = np.flatnonzero(self._changed > seen)
        if len(stale):
            best.increase_mgpu[stale] = np.inf
            best.device[stale] = -1
            _put(best, candidates(nodes, request, self.mix, self.measure, stale), nodes.free_mgpu)
        self._known[request] = self._tick, best
        return best

    def _see(self, nodes: Nodes) -> None:
        last = self._nodes
        if nodes is last:
            return
        self._nodes = nodes
        if last is None or not nodes.is_same_cluster(last):
            self._known.clear()
            self._tick = 0
            self._changed = np.zeros(len(nodes), dtype=np.int64)
            return
        differs = (
            (nodes.free_mgpu != last.free_mgpu).any(axis=1)
            | (nodes.free_cpus != last.free_cpus)
            | (nodes.free_memory_mib != last.free_memory_mib)
            | (nodes.up != last.up)
        )
        self._tick += 1
        self._changed[differs] = self._tick


def _put(best: Best, found: Candidates, free_mgpu: NDArray[np.int32]) -> None:
    """Store the best candidate of each node."""
    free = free_mgpu[found.node, np.maximum(found.device, 0)] if free_mgpu.shape[1] else found.device
    order = np.lexsort((found.device, free, found.increase_mgpu, found.node))
    at, first = np.unique(found.node[order], return_index=True)
    best.increase_mgpu[at] = found.increase_mgpu[order][first]
    best.device[at] = found.device[order][first]
