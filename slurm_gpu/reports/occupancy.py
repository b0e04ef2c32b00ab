"""Calculate the allocation of nodes over time, and the stranded GPUs.

A free GPU is stranded if its node has too few free CPUs or too little free memory to use the GPU. The limit
is the amount per GPU that 90 % of the runs with GPUs on that server type reach or exceed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Category, Floats, Integers

# Percentile of the CPUs and memory per GPU; 90 % of runs use at least this much.
_MODEST = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOccupancy:
    """The allocations of runs on nodes within the period, divided evenly between the nodes of each run."""

    node: Category
    from_s: Floats
    to_s: Floats
    mgpu: Integers
    mcpu: Integers
    mib: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancySpans:
    """Spans in which nothing changed on a node with GPUs, and the node's mgpu in each state.

    `allocated` + `stranded` + `free` + `out` is the number of the node's GPUs, unless more were allocated.
    `out` contains the free GPUs of a node that is out of service.
    """

    from_s: Integers
    to_s: Integers
    allocated: Integers
    stranded: Integers
    free: Integers
    out: Integers


def distribute(
    nodes: Category, from_s: Floats, to_s: Floats, mgpu: Floats, cpus: Floats, mib: Floats
) -> NodeOccupancy:
    """Return the allocations of rows by node; unknown amounts count as 0."""
    running = np.flatnonzero((to_s > from_s) & (nodes.codes >= 0))
    names: dict[str, int] = {}
    used = np.unique(nodes.codes[running])
    members: list[list[int]] = [[] for _ in nodes.names]
    for code in used.tolist():
        members[code] = [names.setdefault(name, len(names)) for name in sorted(node_set(nodes.names[code]))]
    sizes = np.array([len(some) for some in members], np.int64)
    starts = np.append(0, np.cumsum(sizes))
    flat = np.array([place for some in members for place in some], np.int32)
    n_nodes = sizes[nodes.codes[running]]
    rows = np.repeat(running, n_nodes)
    first = np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    where = np.repeat(starts[nodes.codes[running]], n_nodes) + np.arange(len(rows)) - first

    def each(amounts: Floats, factor: int) -> Integers:
        whole = (np.nan_to_num(amounts[running]) * factor).astype(np.int64)
        return np.repeat(whole // np.maximum(n_nodes, 1), n_nodes)

    return NodeOccupancy(
        node=Category(list(names), flat[where]),
        from_s=from_s[rows],
        to_s=to_s[rows],
        mgpu=each(mgpu, 1),
        mcpu=each(cpus, 1000),
        mib=each(mib, 1),
    )


def occupancy(capacity: Capacity, used: NodeOccupancy) -> OccupancySpans:
    """Return the allocated, stranded, free and out-of-service GPUs of nodes with GPUs."""
    names = list(dict.fromkeys([*capacity.node.names, *used.node.names]))
    place = {name: index for index, name in enumerate(names)}
    used_on = np.array([place[name] for name in used.node.names], np.int64)[used.node.codes]
    cap_on = capacity.node.codes.astype(np.int64)
    of_gpus = np.zeros(len(names), np.bool_)
    of_gpus[cap_on[capacity.mgpu > 0]] = True
    of_gpus[used_on[used.mgpu > 0]] = True
    kept, there = np.flatnonzero(of_gpus[used_on]), np.flatnonzero(of_gpus[cap_on])
    need_mcpu, need_mib = _modest_needs(capacity, used, used_on, len(names))

    node = np.concatenate([used_on[kept], cap_on[there]])
    from_s = np.concatenate([used.from_s[kept], capacity.from_s[there]]).astype(np.int64)
    to_s = np.concatenate([used.to_s[kept], capacity.to_s[there]]).astype(np.int64)
    at_s = np.concatenate([from_s, to_s])
    first_s, width_s = (at_s.min(), at_s.max() - at_s.min() + 1) if len(at_s) else (0, 1)
    order = np.argsort(np.concatenate([node, node]) * width_s + at_s - first_s)
    on, at_s = np.concatenate([node, node])[order], at_s[order]

    def course(of_runs: Integers, of_nodes: Integers) -> Integers:
        """Return the totals after each moment; amounts count from their `from_s` to their `to_s`."""
        amounts = np.concatenate([of_runs[kept], of_nodes[there]])
        return np.cumsum(np.concatenate([amounts, -amounts])[order])

    nothing_used, nothing_there = np.zeros_like(used.mgpu), np.zeros_like(capacity.mgpu)
    has = course(nothing_used, capacity.mgpu)
    is_up = course(nothing_used, capacity.up.astype(np.int64)) > 0
    allocated = course(used.mgpu, nothing_there)
    idle = np.maximum(has - allocated, 0)
    free_mcpu = course(-used.mcpu, capacity.cpus * 1000)
    free_mib = course(-used.mib, capacity.memory_mib)
    fits = 1000 * np.minimum(
        np.maximum(free_mcpu, 0) // need_mcpu[on], np.maximum(free_mib, 0) // need_mib[on]
    )
    usable = np.where(is_up, np.minimum(idle, fits), 0)
    spans = np.flatnonzero((on[1:] == on[:-1]) & (at_s[1:] > at_s[:-1]) & ((has > 0) | (allocated > 0))[:-1])
    return OccupancySpans(
        from_s=at_s[spans],
        to_s=at_s[spans + 1],
        allocated=allocated[spans],
        stranded=np.where(is_up, idle - usable, 0)[spans],
        free=usable[spans],
        out=np.where(is_up, 0, idle)[spans],
    )


def _modest_needs(
    capacity: Capacity, used: NodeOccupancy, used_on: Integers, n_nodes: int
) -> tuple[Integers, Integers]:
    """Return the CPU thousandths and MiB that a usable GPU requires on each node; at least 1 of each."""
    type_of = np.full(n_nodes, -1, np.int64)
    type_of[capacity.node.codes] = capacity.server_type.codes
    mcpu, mib = np.ones(n_nodes, np.int64), np.ones(n_nodes, np.int64)
    with_gpus = used.mgpu > 0
    on_type = type_of[used_on]
    for code in np.unique(type_of).tolist():
        some = np.flatnonzero(with_gpus & (on_type == code))
        if len(some):
            of_gpu = np.maximum(used.mgpu[some], 1000) / 1000  # part of a GPU requires as much as a whole one
            mcpu[type_of == code] = _modest(used.mcpu[some] / of_gpu)
            mib[type_of == code] = _modest(used.mib[some] / of_gpu)
    return mcpu, mib


def _modest(amounts: NDArray[np.float64]) -> int:
    return max(1, int(np.percentile(amounts, _MODEST, method="lower")))
