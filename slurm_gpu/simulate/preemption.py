"""Who may take running jobs' places, and which of them give way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import Free, Mask, ModelAllocation, ModelState


@dataclass(frozen=True, slots=True)
class Preemption:
    """For each QOS, those whose running jobs it may requeue."""

    of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    requeue_after_s: float = 0.0
    """How long a requeued job is kept before it waits again."""


def victims_for(
    state: ModelState,
    request: ResourceRequest,
    room: Mask,
    gives_way: Callable[[int], bool],
    ran_s: Callable[[int], float],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The nodes to take and the jobs to requeue there; None where even all of these would not do.

    On each node those that ran for the shortest time go first, and the nodes are those where the least work
    is lost (GPUs and nodes held, times running time; ties by index).
    """
    cheapest: list[tuple[float, int, tuple[int, ...]]] = []
    for node in np.flatnonzero(room & state.open).tolist():
        there = [one for job, one in state.on_node[node].items() if gives_way(job)]
        there.sort(key=lambda one: (ran_s(one.job), -one.job))
        gone = _enough(state.free(node), request, there, node)
        if gone is not None:
            lost = sum(ran_s(one.job) * (1 + one.request.mgpu / GPU_MGPU) for one in gone)
            cheapest.append((lost, node, tuple(one.job for one in gone)))
    if len(cheapest) < request.nodes:
        return None
    cheapest.sort()
    chosen = cheapest[: request.nodes]
    jobs = {job for _, _, jobs in chosen for job in jobs}
    return tuple(sorted(node for _, node, _ in chosen)), tuple(sorted(jobs))


def _enough(
    free: Free, request: ResourceRequest, there: list[ModelAllocation], node: int
) -> list[ModelAllocation] | None:
    gone: list[ModelAllocation] = []
    for allocation in there:
        if free.fits(request):
            break
        free.give_back(allocation.request, allocation.devices_on(node))
        gone.append(allocation)
    if not free.fits(request):
        return None
    # An earlier one goes in vain where a later one gives all that was needed.
    for allocation in gone[:-1]:
        devices = allocation.devices_on(node)
        free.take(allocation.request, devices)
        if free.fits(request):
            gone.remove(allocation)
        else:
            free.give_back(allocation.request, devices)
    return gone
