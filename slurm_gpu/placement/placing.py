"""Apply a placement rule in the model of a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.choice import PlacementRule
from slurm_gpu.placement.state import Mask, Nodes, NodeState, RunningUntil
from slurm_gpu.simulate.cluster import GPU_MGPU, ModelCluster
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.placement import first_devices
from slurm_gpu.simulate.state import ModelState


def empty_nodes(cluster: ModelCluster) -> Nodes:
    """Return the nodes of a modelled cluster on which no job runs."""
    return Nodes.of(
        NodeState(
            name=node.name,
            gpu_types=(node.gpu_type,) * node.gpus,
            free_mgpu=(GPU_MGPU,) * node.gpus,
            cpus=node.cpus,
            free_cpus=node.cpus,
            memory_mib=node.memory_mib,
            free_memory_mib=node.memory_mib,
            zone=node.zone,
        )
        for node in cluster.nodes
    )


class ModelView:
    """The state of a model as placement rules read it; only changed nodes are read again."""

    def __init__(self, cluster: ModelCluster) -> None:
        n = len(cluster.nodes)
        self._running = RunningUntil(0.0, np.zeros(n), np.zeros(n, dtype=np.int64))
        self._nodes, self._seen = replace(empty_nodes(cluster), running=self._running), 0

    def nodes(self, state: ModelState) -> tuple[Nodes, NDArray[np.intp]]:
        """Return all nodes, and the indices of those that changed since the last call."""
        changed = np.flatnonzero(state.changed > self._seen)
        if len(changed):
            free_mgpu = self._nodes.free_mgpu.copy()
            until_s, n_jobs = self._running.until_s.copy(), self._running.n_jobs.copy()
            for node in changed.tolist():
                devices = state.devices[node]
                free_mgpu[node, : len(devices)] = devices
                until_s[node] = max((one.until_s for one in state.on_node[node].values()), default=0.0)
                n_jobs[node] = len(state.on_node[node])
            self._running = RunningUntil(state.now_s, until_s, n_jobs)
            self._nodes = replace(
                self._nodes,
                free_mgpu=free_mgpu,
                free_cpus=state.free_cpus.copy(),
                free_memory_mib=state.free_memory_mib.copy(),
                up=state.open.copy(),
                running=self._running,
            )
            self._seen = state.tick
        return self._nodes, changed


class ByRule:
    """Adapt a placement rule to `simulate.placement.Placement`, for one run of one model."""

    def __init__(self, cluster: ModelCluster, rule: PlacementRule) -> None:
        self._rule, self._view = rule, ModelView(cluster)

    def choose(self, state: ModelState, request: ResourceRequest, fitting: NDArray[np.intp]) -> list[int]:
        """Apply the rule to the lightest nodes first, then to heavier ones until enough nodes are chosen.

        For a job that requires one zone, use the zone with the fewest free GPUs in which the job fits.
        """
        nodes, _ = self._view.nodes(state)
        fitting = _in_one_zone(nodes, request, fitting)
        chosen: list[int] = []
        for weight in np.unique(state.weight[fitting]).tolist():
            missing = replace(request, nodes=request.nodes - len(chosen), one_zone=False)
            among: Mask = np.zeros(len(nodes), dtype=np.bool_)
            among[fitting[state.weight[fitting] == weight]] = True
            here = min(missing.nodes, int(np.count_nonzero(among)))
            places = self._rule.choose(nodes, replace(missing, nodes=here), among)
            chosen += [place.node for place in places]
            if len(chosen) == request.nodes:
                return chosen
        return []

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """Return the first completely free GPUs; for a share, return the GPU that the rule chooses."""
        if not request.share_mgpu:
            return first_devices(state.devices[node], request)
        among: Mask = np.zeros(len(state.open), dtype=np.bool_)
        among[node] = True
        nodes, _ = self._view.nodes(state)
        (place,) = self._rule.choose(nodes, replace(request, nodes=1, one_zone=False), among)
        return place.devices


def _in_one_zone(nodes: Nodes, request: ResourceRequest, fitting: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the fitting nodes of the zone with the fewest free GPUs, or all if the job may span zones."""
    if not request.one_zone or request.nodes == 1:
        return fitting
    rooms = np.bincount(nodes.zone[fitting], minlength=len(nodes.zones))
    free = np.bincount(nodes.zone[nodes.up], nodes.free_gpus[nodes.up], minlength=len(nodes.zones))
    zones = np.flatnonzero(rooms >= request.nodes)
    return fitting[nodes.zone[fitting] == zones[free[zones].argmin()]] if len(zones) else fitting[:0]
