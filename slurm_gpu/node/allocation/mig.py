"""Which MIG instance a capability's device file opens.

A job that may use an instance may open its GPU's file and two of /dev/nvidia-caps/nvidia-capN: that of the
GPU instance, and that of the compute instance in it. The driver tells what each N is in
/proc/driver/nvidia-caps/mig-minors, in lines such as `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`, where
gpu0 counts by minor number. Slurm reads the same file (src/plugins/gpu/nvml/gpu_nvml.c, _handle_mig).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
MIG_MINORS_VARIABLE = "SLURM_GPU_MIG_MINORS"
"""In the environment: the file to read instead, where several nodes share a host."""

_LINE = re.compile(r"gpu(?P<gpu>\d+)/gi(?P<gi>\d+)/(?:ci(?P<ci>\d+)/)?access (?P<minor>\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Capability:
    """An instance on the GPU with that minor number; `compute_instance` None: the GPU instance as such."""

    gpu: int
    gpu_instance: int
    compute_instance: int | None


def read_capabilities(path: Path = MIG_MINORS) -> Mapping[int, Capability]:
    """By the capability's minor number; empty where the driver knows no MIG."""
    try:
        text = path.read_text("ascii", "replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            ci = None if match["ci"] is None else int(match["ci"])
            found[int(match["minor"])] = Capability(int(match["gpu"]), int(match["gi"]), ci)
    return found
