"""Character devices that stand for the GPUs of the simulated nodes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence

from lab.errors import LabError
from lab.layout import Layout
from lab.options import Node

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


def remove(layout: Layout) -> None:
    """Remove all devices of the lab."""
    if layout.devices.exists():
        shutil.rmtree(layout.devices)
