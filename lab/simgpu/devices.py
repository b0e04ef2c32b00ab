"""Find the devices that a CUDA program would see in this process.

As in CUDA, these are the devices that the process may open, in PCI order, and that CUDA_VISIBLE_DEVICES names
by index or UUID. Indices are therefore relative inside a device cgroup, and global outside of one.

A process sees only one MIG instance, however many there are ("a single CUDA process can only enumerate a
single MIG device", NVIDIA's MIG User Guide, CUDA Device Enumeration). A process may open an instance if it
may open the device files of the GPU, of the GPU instance and of the compute instance.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import RequestError
from .mig import CAPABILITIES, capabilities
from .world import Device


def openable(devices: Sequence[Device], directory: Path | None) -> list[Device]:
    """Return the devices that this process may open, in PCI order.

    ``directory`` contains one device file per GPU, whose name ends in the minor number, and the device files
    of MIG are in ``nvidia-caps``. Without a driver, open() of an allowed device fails with ENXIO, and of a
    fenced one with EPERM. Without a directory, no device is fenced.
    """
    ordered = sorted(devices, key=lambda device: (device.pci, device.gpu_instance or 0))
    if directory is None or not directory.is_dir():
        return ordered
    gpus, parts = _by_minor(directory), _by_minor(directory / CAPABILITIES)
    return [
        device
        for device in ordered
        if _may_open(gpus.get(device.minor))
        and all(_may_open(parts.get(minor)) for minor in capabilities(device.minor, device.gpu_instance))
    ]


def _by_minor(directory: Path) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    return {int(match[0]): path for path in directory.iterdir() if (match := re.search(r"\d+$", path.name))}


def _may_open(path: Path | None) -> bool:
    if path is None:
        return False
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.ENXIO, errno.ENODEV)
    return True


def visible(candidates: Sequence[Device], cuda_visible_devices: str | None) -> list[Device]:
    """Return the ``candidates`` that CUDA_VISIBLE_DEVICES selects, in its order.

    If the variable is unset (None), return all candidates. The list ends at the first entry that names no
    device (``-1``, ``NoDevFiles``); if a device is named twice, the result is empty.
    """
    if cuda_visible_devices is None:
        return _at_most_one_instance(candidates)
    chosen: list[Device] = []
    for entry in cuda_visible_devices.split(","):
        device = _named(candidates, entry.strip())
        if device is None:
            break
        if device in chosen:
            return []
        chosen.append(device)
    return _at_most_one_instance(chosen)


def _at_most_one_instance(seen: Sequence[Device]) -> list[Device]:
    instance = next((device for device in seen if device.gpu_instance is not None), None)
    return list(seen) if instance is None else [instance]


def _named(candidates: Sequence[Device], entry: str) -> Device | None:
    if re.fullmatch(r"\d+", entry):
        return candidates[int(entry)] if int(entry) < len(candidates) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matches = [device for device in candidates if device.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def selected(seen: Sequence[Device], request: str) -> list[Device]:
    """Return the devices that ``--gpus`` selects: ``all`` or CUDA ordinals such as ``0,1``."""
    if request == "all":
        return list(seen)
    if not re.fullmatch(r"\d+(,\d+)*", request):
        raise RequestError(f"--gpus {request!r}: must be all or CUDA ordinals, such as 0,1")
    ordinals = sorted({int(text) for text in request.split(",")})
    if ordinals[-1] >= len(seen):
        raise RequestError(
            f"--gpus {request!r}: there is no GPU {ordinals[-1]}, CUDA would see {len(seen)} here"
        )
    return [seen[ordinal] for ordinal in ordinals]
