"""The options of the lab when it is brought up."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from lab.errors import LabError
from lab.layout import Layout
from lab.simgpu.mig import CAPABILITIES, capabilities
from lab.simgpu.specs import numbered

GPUS_PER_NODE = 4
SHARDS_PER_NODE = 16
_UUID_NAMESPACE = uuid.UUID("5b1c0f1e-6d0a-4a3e-9a51-5f0e6e1c7a10")


class GpuModel(StrEnum):
    """The GPU model of a node; its name is the GRES type, the feature and the server type."""

    A100 = "a100"
    # This model has GPM metrics, and reports link traffic as a fraction of the bandwidth.
    H100 = "h100"


class JobSubmit(StrEnum):
    """The job_submit.lua that slurmctld runs."""

    NONE = "none"
    NOOP = "noop"
    OURS = "ours"


@dataclass(frozen=True)
class NodeGpus:
    """The numbering of the GPUs of one node; NVML, devices and gres.conf may use different orders.

    ``minors`` are the minor numbers in the order of NVML's index; ``listed`` are the minor
    numbers in the order of gres.conf (by default, ``minors`` in ascending order).
    """

    minors: tuple[int, ...] = tuple(range(GPUS_PER_NODE))
    listed: tuple[int, ...] | None = None
    prefix: str = "nvidia"
    # By minor number: the GPUs that are divided into MIG instances, with their profiles. Slurm sees each
    # instance as a GPU whose type depends on its profile. A cluster with MIG has no shards.
    mig: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    model: GpuModel = GpuModel.A100

    def __post_init__(self) -> None:
        if self.listed is not None and sorted(self.listed) != sorted(self.minors):
            raise LabError(f"gres.conf order {self.listed}: must list exactly the minors {self.minors}")

    @property
    def gres_order(self) -> tuple[int, ...]:
        """The minor numbers in the order of gres.conf; Slurm's positions follow the same order."""
        return tuple(sorted(self.minors)) if self.listed is None else self.listed


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU, or one MIG instance of it, with all its identifiers."""

    node: str
    # The NVML index of the GPU.
    nvml_index: int
    # The minor number of the GPU.
    minor: int
    # The index of the GPU or instance in SLURM_JOB_GPUS; None for a GPU with MIG instances.
    position: int | None
    uuid: str
    # The device file of the GPU.
    file: Path
    # The MIG profile of an instance.
    profile: str | None = None
    # Additional device files of an instance.
    capabilities: tuple[Path, ...] = ()
    instances: tuple[Gpu, ...] = ()
    model: GpuModel = GpuModel.A100

    @property
    def slurm_type(self) -> str:
        """Return the type of the GPU in gres.conf."""
        return self.model.value if self.profile is None else self.profile


@dataclass(frozen=True)
class Node:
    """One simulated node."""

    name: str
    number: int
    address: str
    zone: str
    # The GPUs of the node, in NVML order.
    gpus: tuple[Gpu, ...]

    @property
    def model(self) -> GpuModel:
        """The model of the node's GPUs."""
        return self.gpus[0].model

    @property
    def handed_out(self) -> tuple[Gpu, ...]:
        """Return the whole GPUs and MIG instances that Slurm allocates, in the order of gres.conf."""
        whole_or_cut = (gpu.instances or (gpu,) for gpu in self.gpus)
        by_position = {gpu.position: gpu for group in whole_or_cut for gpu in group}
        return tuple(by_position[position] for position in range(len(by_position)))

    @property
    def cut(self) -> bool:
        """Return whether any GPU is divided into MIG instances."""
        return any(gpu.instances for gpu in self.gpus)

    def at_position(self, position: int) -> Gpu:
        """Return the GPU or instance at Slurm's ``position``."""
        return self.handed_out[position]


@dataclass(frozen=True)
class Options:
    """The options of up(); the default is the cluster of the demo."""

    nodes: int = 4
    # By node name: the numbering of the GPUs, unless NVML, devices and gres.conf all use 0, 1, 2, 3.
    gpus: Mapping[str, NodeGpus] = field(default_factory=dict)
    # Whether Slurm enforces its own associations and limits.
    native_limits: bool = True
    job_submit: JobSubmit = JobSubmit.OURS
    # Whether slurm-gpud, slurm-gpudbd and the hooks run; if not, only Slurm runs.
    services: bool = True
    # Whether slurm-gpuctld runs; if None, it runs whenever the other services run.
    controller: bool | None = None
    # Number of processes of slurm-gpudbd that store shipments.
    database_workers: int = 0
    # Whether each node, and slurm-gpudbd, has an adjustable wall clock: see lab/clocks.py.
    own_clocks: bool = False
    # Lines appended to slurm.conf.
    extra_slurm_conf: tuple[str, ...] = ()
    # The dynamic node: slurmd registers it, and slurm.conf does not list it. There can be only one, since all
    # dynamic nodes have the same SlurmdPort.
    dynamic: str | None = None

    @property
    def with_controller(self) -> bool:
        """Return whether slurm-gpuctld runs."""
        return self.services if self.controller is None else self.controller

    def node_table(self, layout: Layout) -> tuple[Node, ...]:
        """Return the nodes with their addresses, zones and GPUs."""
        return tuple(self._node(layout, number) for number in range(1, self.nodes + 1))

    def _node(self, layout: Layout, number: int) -> Node:
        name = f"n{number}"
        numbering = self.gpus.get(name, NodeGpus())
        return Node(
            name=name,
            number=number,
            # For a dynamic node, slurmctld uses the address from which the node registers.
            address="127.0.0.1" if name == self.dynamic else f"127.0.1.{number}",
            zone="zone1" if number <= (self.nodes + 1) // 2 else "zone2",
            gpus=_gpus(name, numbering, layout.node(name).devices),
        )

    def save(self, path: Path) -> None:
        """Write the options for later commands on the running lab."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Options:
        """Read the file of ``save``."""
        values = json.loads(path.read_text())
        return cls(
            nodes=values["nodes"],
            gpus={
                name: NodeGpus(
                    minors=tuple(gpus["minors"]),
                    listed=None if gpus["listed"] is None else tuple(gpus["listed"]),
                    prefix=gpus["prefix"],
                    mig={int(minor): tuple(profiles) for minor, profiles in gpus["mig"].items()},
                    model=GpuModel(gpus["model"]),
                )
                for name, gpus in values["gpus"].items()
            },
            native_limits=values["native_limits"],
            job_submit=JobSubmit(values["job_submit"]),
            services=values["services"],
            controller=values["controller"],
            database_workers=values["database_workers"],
            own_clocks=values["own_clocks"],
            extra_slurm_conf=tuple(values["extra_slurm_conf"]),
            dynamic=values["dynamic"],
        )


def _gpus(node: str, numbering: NodeGpus, directory: Path) -> tuple[Gpu, ...]:
    positions = itertools.count()
    by_minor = {minor: _gpu(node, minor, numbering, directory, positions) for minor in numbering.gres_order}
    return tuple(by_minor[minor] for minor in numbering.minors)


def _gpu(node: str, minor: int, numbering: NodeGpus, directory: Path, positions: Iterator[int]) -> Gpu:
    profiles = numbering.mig.get(minor, ())
    gpu = Gpu(
        node=node,
        nvml_index=numbering.minors.index(minor),
        minor=minor,
        position=None if profiles else next(positions),
        uuid=f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node}/{minor}')}",
        file=directory / f"{numbering.prefix}{minor}",
        model=numbering.model,
    )
    instances = [
        replace(
            gpu,
            position=next(positions),
            uuid=f"MIG-{uuid.uuid5(_UUID_NAMESPACE, f'{node}/{minor}/{number}')}",
            profile=profile,
            capabilities=tuple(
                directory / CAPABILITIES / f"nvidia-cap{capability}"
                for capability in capabilities(minor, gpu_instance)
            ),
        )
        for number, (profile, gpu_instance) in enumerate(zip(profiles, numbered(profiles), strict=True))
    ]
    return replace(gpu, instances=tuple(instances))
