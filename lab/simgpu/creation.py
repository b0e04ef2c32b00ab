"""Create a world file, with the GPUs of a simulated node and the call counts of each NVML function."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from . import layout
from .errors import RequestError
from .specs import GpuSpec, check, fill, instances

_FUNCTIONS = Path(__file__).resolve().parent.parent / "nvml" / "functions.def"


def function_names() -> list[str]:
    """Return the library's functions in the order of their numbers."""
    return re.findall(r"^X\((\w+)\)", _FUNCTIONS.read_text(), re.MULTILINE)


def create(path: Path, gpus: Sequence[GpuSpec], boot: float | None = None) -> None:
    """Write a new world with ``gpus`` in NVML order, readable and writable by everyone.

    The counters start at ``boot`` (epoch seconds; now if None). An existing file is replaced, not
    changed: a process that has mapped it continues with the old one until nvmlShutdown.
    """
    check(gpus)
    size = ctypes.sizeof(layout.WorldStruct)
    content = layout.WorldStruct(
        magic=layout.MAGIC,
        version=layout.VERSION,
        size=size,
        n_devices=len(gpus),
        boot_ns=time.time_ns() if boot is None else round(boot * 1e9),
        driver_loaded=1,
        driver_loads=1,
    )
    content.history[0].until_ns = content.boot_ns
    names = function_names()
    content.n_functions = len(names)
    for call, name in zip(content.calls, names, strict=False):
        call.name = name.encode()
    for index, gpu in enumerate(gpus):
        fill(content.devices[index], index, gpu)
    place(content, [one for index, gpu in enumerate(gpus) for one in instances(gpu.mig, index)])
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(bytes(content)[: layout.WorldStruct.processes.offset])
        file.truncate(size)  # the process slots are a hole in the file until they are used
    new.chmod(0o666)
    new.replace(path)


def place(content: layout.WorldStruct, new: Sequence[layout.InstanceStruct]) -> None:
    """Create MIG instances on GPUs without any."""
    free = [number for number, there in enumerate(content.instances) if not there.exists]
    if len(new) > len(free):
        raise RequestError(f"{len(new)} MIG instances: there is room for {len(free)} more")
    for number, instance in zip(free, new, strict=False):
        content.instances[number] = instance
