"""A rule of placement in the model of a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.choice import Place, Rule
from slurm_gpu.placement.state import Mask, Nodes, NodeState
from slurm_gpu.simulate.cluster import GPU_MGPU, Cluster
from slurm_gpu.simulate.jobs import Request
from slurm_gpu.simulate.placement import first_devices
from slurm_gpu.simulate.state import ClusterState


def empty_nodes(cluster: Cluster) -> Nodes:
    """A modelled cluster with nothing on it."""
    return Nodes.of(
        NodeState(
            name=node.name, gpu_types=(node.gpu_type,) * node.gpus, free_mgpu=(GPU_MGPU,) * node.gpus,
            cpus=node.cpus, free_cpus=node.cpus, memory_mib=node.memory_mib,
            free_memory_mib=node.memory_mib, zone=node.zone,
        )
        for node in cluster.nodes
    )  # fmt: skip


class View:
    """The state of one run of a model, as rules read it; only nodes that changed are read anew."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes, self._seen = empty_nodes(cluster), 0

    def nodes(self, state: ClusterState) -> tuple[Nodes, NDArray[np.intp]]:
        """All of them, and which changed since the last question."""
        changed = np.flatnonzero(state.changed > self._seen)
        if len(changed):
            free_mgpu = self._nodes.free_mgpu.copy()
            for node in changed.tolist():
                devices = state.devices[node]
                free_mgpu[node, : len(devices)] = devices
            self._nodes = replace(
                self._nodes,
                free_mgpu=free_mgpu,
                free_cpus=state.free_cpus.copy(),
                free_memory_mib=state.free_memory_mib.copy(),
                up=state.open.copy(),
            )
            self._seen = state.tick
        return self._nodes, changed


class ByRule:
    """The `simulate.placement.Placement` of a rule; for one run of one model."""

    def __init__(self, cluster: Cluster, rule: Rule) -> None:
        self._rule, self._view = rule, View(cluster)

    def choose(self, state: ClusterState, request: Request, fitting: NDArray[np.intp]) -> list[int]:
        """What the rule says; of zones with room, for a job that has to be in one, the fullest."""
        among: Mask = np.zeros(len(state.open), dtype=np.bool_)
        among[fitting] = True
        nodes, _ = self._view.nodes(state)
        return [place.node for place in in_one_zone(self._rule, nodes, request, among)]

    def devices(self, state: ClusterState, node: int, request: Request) -> tuple[int, ...]:
        """The first whole GPUs; for a share, what the rule says."""
        if not request.share_mgpu:
            return first_devices(state.devices[node], request)
        among: Mask = np.zeros(len(state.open), dtype=np.bool_)
        among[node] = True
        nodes, _ = self._view.nodes(state)
        (place,) = self._rule.choose(nodes, replace(request, nodes=1, one_zone=False), among)
        return place.devices


def in_one_zone(rule: Rule, nodes: Nodes, request: Request, among: Mask) -> tuple[Place, ...]:
    """What the rule says; for a job that has to be in one zone, of the one with room and fewest free GPUs."""
    if not request.one_zone or request.nodes == 1:
        return rule.choose(nodes, request, among)
    fits = among & nodes.fits(request)
    rooms = np.bincount(nodes.zone[fits], minlength=len(nodes.zones))
    free = np.bincount(nodes.zone[nodes.up], nodes.free_gpus[nodes.up], minlength=len(nodes.zones))
    zones = np.flatnonzero(rooms >= request.nodes)
    if not len(zones):
        return ()
    return rule.choose(nodes, request, fits & (nodes.zone == zones[free[zones].argmin()]))
