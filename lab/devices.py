"""The GPUs of the simulated nodes: character devices for Slurm to fence, a world behind NVML."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence

from lab.errors import LabError
from lab.layout import Layout
from lab.options import Node
from lab.simgpu import world
from lab.simgpu.world import GpuSpec

NVIDIA_MAJOR = 195


def create(layout: Layout, nodes: Sequence[Node]) -> None:
    """Make one device per GPU. Nodes share minor numbers, as the cgroups that fence them are apart.

    Without a driver an open() of an allowed device says ENXIO, of a fenced one EPERM.
    """
    for node in nodes:
        for gpu in node.gpus:
            gpu.file.parent.mkdir(parents=True, exist_ok=True)
            gpu.file.unlink(missing_ok=True)
            try:
                os.mknod(gpu.file, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, gpu.minor))
            except OSError as error:
                raise LabError(f"mknod {gpu.file} c {NVIDIA_MAJOR} {gpu.minor}: {error.strerror}") from error
            gpu.file.chmod(0o666)


def create_worlds(layout: Layout, nodes: Sequence[Node]) -> None:
    """Make the file behind each node's simulated NVML, with the GPUs in NVML's order."""
    for node in nodes:
        world.create(
            layout.node(node.name).world, [GpuSpec(uuid=gpu.uuid, minor=gpu.minor) for gpu in node.gpus]
        )


def remove(layout: Layout) -> None:
    """Remove all devices of the lab."""
    if layout.devices.exists():
        shutil.rmtree(layout.devices)
