"""A small cluster with the weight controller, which tests stop, kill and restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_gpu.config.site import Placement, SiteConfig, Zone
from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.table import PlacementTable
from slurm_gpu.controller.placement.weights import CYCLE_S, WeightController
from slurm_gpu.controller.queue.job_mix import JobMix
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.slurm.client import SlurmctldHost
from slurm_gpu.slurm.queue import CountedJob
from slurm_gpu.wire.answers.runs import AuditEvent

from .fakes import Clock, Slurm, make_node

CONF = "NodeName=n[1-4] Gres=gpu:a100:4\nNodeName=c1\nPartitionName=gpu Nodes=ALL\n"
BUSY = {"n1": 1, "n2": 3, "n3": 2, "n4": 0}
# The weights for BUSY: c1 keeps 1, and nodes with GPUs follow, the fullest first.
PACKED = {"n1": 5, "n2": 3, "n3": 4, "n4": 6, "c1": 1}


class Site:
    """The weight controller, and a cluster of four nodes with four GPUs each and one node without GPUs."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.conf = directory / "slurm.conf"
        self.conf.write_text(CONF)
        self.slurm = Slurm(self.clock, str(self.conf))
        self.slurm.hosts = [SlurmctldHost("head", is_up=True)]
        self.slurm.node_list = [make_node("c1", gpus={}, gpus_allocated={}, shards=0)]
        self.reported: list[AuditEvent] = []
        self.busy(BUSY)
        self.running = 0
        self.jobs: list[CountedJob] | None = None
        """Jobs in the last poll of the queue."""
        self.mix = JobMix(self.clock, directory / "jobmix.json")

    def busy(self, gpus: dict[str, int], **more: Any) -> None:
        """Set the GPUs in use on each node, with their share of cores."""
        weights = {node.name: node.weight for node in self.slurm.node_list}
        self.slurm.node_list = [
            *(node for node in self.slurm.node_list if node.name not in gpus),
            *(
                make_node(
                    name,
                    gpus_allocated={"a100": n},
                    cpus_allocated=8 * n,
                    weight=weights.get(name, 1),
                    **more,
                )
                for name, n in gpus.items()
            ),
        ]

    def start(self, mode: str = "enforce", host: str = "head", **placement: Any) -> WeightController:
        config = SiteConfig(
            cluster="lab", placement=Placement(mode, **placement), zones={"zone1": Zone("n[1-2]", "small")}
        )
        self.controller = WeightController(
            config,
            self.directory,
            self.slurm,
            NodeCache(self.slurm, self.clock),
            self.clock,
            AuditReporter(self.clock, self.reported.extend),
            lambda: 0.0,
            host,
            self.mix,
        )
        self.controller.run(self.view)
        return self.controller

    def run_cycle(self, after_s: float = CYCLE_S) -> None:
        self.clock.advance(after_s)
        self.controller.run(self.view)

    @property
    def view(self) -> QueueView:
        return QueueView(answered=self.jobs is not None, running=self.running, jobs=self.jobs or ())

    @property
    def weights(self) -> dict[str, int]:
        return {node.name: node.weight for node in self.slurm.node_list}

    @property
    def memory(self) -> Path:
        return self.directory / "slurm-gpu" / "weights.json"

    def table(self) -> PlacementTable:
        found = placementtable.read(self.directory / "placement.json")
        assert found is not None
        return found

    def stop(self) -> list[str]:
        self.controller.stop()
        return [act.action for act in self.reported]


ALL_ONE = dict.fromkeys(PACKED, 1)
