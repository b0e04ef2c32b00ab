"""Create the simulated nodes' GPUs: device files, which Slurm fences, and the simulated NVML's files."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError
from lab.layout import Layout
from lab.options import Gpu, GpuModel, Node
from lab.simgpu import creation, mig
from lab.simgpu.specs import GpuSpec, MigSpec, hopper

NVIDIA_MAJOR = 195
# The kernel reserves this major number for local use, so no driver has it.
CAPABILITY_MAJOR = 120
# The bandwidths of PCIe 5.0 x16, and of 18 links of NVLink 4, in one direction.
PCIE_BYTES_PER_S, NVLINK_BYTES_PER_S = 63_015_384_615, 450_000_000_000


def create(layout: Layout, nodes: Sequence[Node]) -> None:
    """Create one device per GPU. Nodes use the same minor numbers, since each node has its own cgroups.

    Without a driver, open() of an allowed device fails with ENXIO, and of a fenced one with EPERM.
    """
    for node in nodes:
        for gpu in node.gpus:
            _mknod(gpu.file, NVIDIA_MAJOR, gpu.minor)
            for instance in gpu.instances:
                for file in instance.capabilities:
                    _mknod(file, CAPABILITY_MAJOR, int(file.name.removeprefix("nvidia-cap")))
        if node.cut:
            layout.node(node.name).mig_minors.write_text(mig.minors_file(gpu.minor for gpu in node.gpus))


def _mknod(file: Path, major: int, minor: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    try:
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except OSError as error:
        raise LabError(f"mknod {file} c {major} {minor}: {error.strerror}") from error
    file.chmod(0o666)


def create_worlds(layout: Layout, nodes: Sequence[Node]) -> None:
    """Create the world file of each node's simulated NVML, with the GPUs in NVML's order."""
    for node in nodes:
        creation.create(layout.node(node.name).world, [spec(gpu) for gpu in node.gpus])


def spec(gpu: Gpu) -> GpuSpec:
    """Return the properties of a GPU of the lab."""
    instances = tuple(MigSpec(str(instance.profile), instance.uuid) for instance in gpu.instances)
    if gpu.model is GpuModel.A100:
        return GpuSpec(uuid=gpu.uuid, minor=gpu.minor, mig=instances)
    return hopper(
        gpu.uuid,
        minor=gpu.minor,
        mig=instances,
        # With these values, the factors of a footprint are fractions of the links' capacity.
        pcie_tx_bytes_per_s=PCIE_BYTES_PER_S,
        pcie_rx_bytes_per_s=PCIE_BYTES_PER_S,
        nvlink_tx_bytes_per_s=NVLINK_BYTES_PER_S,
        nvlink_rx_bytes_per_s=NVLINK_BYTES_PER_S,
    )


def remove(layout: Layout) -> None:
    """Remove all devices of the lab."""
    if layout.devices.exists():
        shutil.rmtree(layout.devices)
