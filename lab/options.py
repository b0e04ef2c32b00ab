"""What can be chosen when the lab is brought up."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from lab.errors import LabError
from lab.layout import Layout

GPUS_PER_NODE = 4
SHARDS_PER_NODE = 16
_UUID_NAMESPACE = uuid.UUID("5b1c0f1e-6d0a-4a3e-9a51-5f0e6e1c7a10")


class JobSubmit(StrEnum):
    """Which job_submit.lua slurmctld runs."""

    NONE = "none"
    NOOP = "noop"
    OURS = "ours"


@dataclass(frozen=True)
class NodeGpus:
    """How the GPUs of one node are numbered; each system that numbers GPUs may disagree.

    ``minors`` are the minor numbers in the order of NVML's index; ``listed`` are the minor
    numbers in the order of gres.conf (as ``minors`` sorted, if not given).
    """

    minors: tuple[int, ...] = tuple(range(GPUS_PER_NODE))
    listed: tuple[int, ...] | None = None
    prefix: str = "nvidia"

    def __post_init__(self) -> None:
        if self.listed is not None and sorted(self.listed) != sorted(self.minors):
            raise LabError(f"gres.conf order {self.listed}: must list exactly the minors {self.minors}")

    @property
    def gres_order(self) -> tuple[int, ...]:
        """Minor numbers in the order of gres.conf, which is Slurm's position."""
        return tuple(sorted(self.minors)) if self.listed is None else self.listed


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU under all the names that it has."""

    node: str
    nvml_index: int
    minor: int
    position: int
    """What SLURM_JOB_GPUS calls it."""
    uuid: str
    file: Path


@dataclass(frozen=True)
class Node:
    """One simulated node."""

    name: str
    number: int
    address: str
    zone: str
    gpus: tuple[Gpu, ...]
    """In NVML order."""

    def at_position(self, position: int) -> Gpu:
        """Return the GPU that Slurm calls ``position``."""
        return next(gpu for gpu in self.gpus if gpu.position == position)


@dataclass(frozen=True)
class Options:
    """Choices of up(); the default is the cluster of the demo."""

    nodes: int = 4
    gpus: Mapping[str, NodeGpus] = field(default_factory=dict)
    """Numbering per node, where it differs from 0, 1, 2, 3 everywhere."""
    native_limits: bool = True
    """Whether Slurm enforces associations and limits of its own."""
    job_submit: JobSubmit = JobSubmit.OURS
    services: bool = True
    """Whether slurm-gpud, slurm-gpudbd and the hooks run; the bare cluster if not."""
    extra_slurm_conf: tuple[str, ...] = ()
    """Lines appended to slurm.conf."""

    def node_table(self, layout: Layout) -> tuple[Node, ...]:
        """Return the nodes with their addresses, zones and GPUs."""
        return tuple(self._node(layout, number) for number in range(1, self.nodes + 1))

    def _node(self, layout: Layout, number: int) -> Node:
        name = f"n{number}"
        numbering = self.gpus.get(name, NodeGpus())
        directory = layout.node(name).devices
        return Node(
            name=name,
            number=number,
            address=f"127.0.1.{number}",
            zone="zone1" if number <= (self.nodes + 1) // 2 else "zone2",
            gpus=tuple(
                Gpu(
                    node=name,
                    nvml_index=index,
                    minor=minor,
                    position=numbering.gres_order.index(minor),
                    uuid=f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{name}/{minor}')}",
                    file=directory / f"{numbering.prefix}{minor}",
                )
                for index, minor in enumerate(numbering.minors)
            ),
        )

    def save(self, path: Path) -> None:
        """Write the options, so that later commands know the running lab."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Options:
        """Read what ``save`` wrote."""
        values = json.loads(path.read_text())
        return cls(
            nodes=values["nodes"],
            gpus={
                name: NodeGpus(
                    minors=tuple(gpus["minors"]),
                    listed=None if gpus["listed"] is None else tuple(gpus["listed"]),
                    prefix=gpus["prefix"],
                )
                for name, gpus in values["gpus"].items()
            },
            native_limits=values["native_limits"],
            job_submit=JobSubmit(values["job_submit"]),
            services=values["services"],
            extra_slurm_conf=tuple(values["extra_slurm_conf"]),
        )
