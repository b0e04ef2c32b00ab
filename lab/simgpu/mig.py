"""The device files of MIG: one for each GPU instance and each compute instance, under ``nvidia-caps``.

The driver lists their meaning in /proc/driver/nvidia-caps/mig-minors, in lines such as
``gpu0/gi1/access 12`` and ``gpu0/gi1/ci0/access 13``, with the GPU's minor number (NVIDIA's MIG User Guide,
Device Nodes and Capabilities).
"""

from __future__ import annotations

from collections.abc import Iterable

# The name of the directory of these device files, next to the device files of the GPUs.
CAPABILITIES = "nvidia-caps"

_FIRST, _PER_GPU, _PER_INSTANCE = 3, 135, 9
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8


def capabilities(gpu_minor: int, gpu_instance: int | None) -> list[int]:
    """Return the minor numbers of the capabilities that a MIG instance needs: access to GI and CI.

    A whole GPU (None) needs none. Every simulated GPU instance has only compute instance 0.
    """
    if gpu_instance is None:
        return []
    access = _FIRST + gpu_minor * _PER_GPU + gpu_instance * _PER_INSTANCE
    return [access, access + 1]


def minors_file(gpu_minors: Iterable[int]) -> str:
    """Return the content of mig-minors, which lists every possible instance, as the driver does."""
    lines = ["config 1", "monitor 2"]
    for gpu in gpu_minors:
        for instance in range(_GPU_INSTANCES):
            access = capabilities(gpu, instance)[0]
            lines.append(f"gpu{gpu}/gi{instance}/access {access}")
            lines += [
                f"gpu{gpu}/gi{instance}/ci{number}/access {access + 1 + number}"
                for number in range(_COMPUTE_INSTANCES)
            ]
    return "".join(f"{line}\n" for line in lines)
