"""Select the running jobs that a preempting job replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import FreeResources, Mask, ModelAllocation, ModelState


@dataclass(frozen=True, slots=True)
class Preemption:
    """The preemption rules: for each QOS, the QOS whose running jobs may be requeued for it."""

    of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    requeue_after_s: float = 0.0
    """Delay before a requeued job waits again."""


def victims_for(
    state: ModelState,
    request: ResourceRequest,
    room: Mask,
    gives_way: Callable[[int], bool],
    ran_s: Callable[[int], float],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the nodes to use and the jobs to requeue on them; None if requeuing is not enough.

    `gives_way` returns whether a job may be requeued. On each node, the jobs with the shortest run time are
    requeued first. The nodes are chosen so that the least work is lost; the work of a job is its run time ×
    (GPUs + 1). Ties are broken by index.
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
    free: FreeResources, request: ResourceRequest, there: list[ModelAllocation], node: int
) -> list[ModelAllocation] | None:
    gone: list[ModelAllocation] = []
    for allocation in there:
        if free.fits(request):
            break
        free.give_back(allocation.request, allocation.devices_on(node))
        gone.append(allocation)
    if not free.fits(request):
        return None
    # A job that was chosen early need not be requeued if the jobs chosen later free enough resources.
    for allocation in gone[:-1]:
        devices = allocation.devices_on(node)
        free.take(allocation.request, devices)
        if free.fits(request):
            gone.remove(allocation)
        else:
            free.give_back(allocation.request, devices)
    return gone
