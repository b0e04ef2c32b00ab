"""Define the GPUs of simulated nodes: data sheets, and their form in the world file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from . import layout
from .errors import RequestError


class Profile(NamedTuple):
    """A kind of MIG instance."""

    slices: int
    sm_count: int
    memory_mib: int
    # The lowest ID that the driver assigns to GPU instances of this kind.
    first_id: int


# The profiles of the A100 with 40 GB, then those of the H100 with 80 GB.
MIG_PROFILES = {
    "1g.5gb": Profile(1, 14, 4864, 7),
    "2g.10gb": Profile(2, 28, 9984, 3),
    "3g.20gb": Profile(3, 42, 20096, 1),
    "4g.20gb": Profile(4, 56, 20096, 1),
    "7g.40gb": Profile(7, 98, 40448, 0),
    "1g.10gb": Profile(1, 16, 9984, 7),
    "2g.20gb": Profile(2, 32, 20096, 3),
    "3g.40gb": Profile(3, 60, 40320, 1),
    "4g.40gb": Profile(4, 64, 40320, 1),
    "7g.80gb": Profile(7, 132, 81024, 0),
}


@dataclass(frozen=True)
class MigSpec:
    """One MIG instance."""

    profile: str
    # ``MIG-…``.
    uuid: str


@dataclass(frozen=True)
class GpuSpec:
    """One GPU; the defaults are those of an A100-SXM4-40GB."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    minor: int = 0
    memory_mib: int = 40960
    # The driver's own memory: part of ``used`` in MemoryInfo, and ``reserved`` in MemoryInfo_v2.
    reserved_mib: int = 512
    # domain:bus:device; if None, bus numbers ascend with the NVML index, as on real nodes.
    pci_bus_id: str | None = None
    idle_w: float = 55.0
    # Power at 100 % utilisation; from idle to this limit, power increases linearly with utilisation.
    power_limit_w: float = 400.0
    idle_temperature_c: int = 32
    full_temperature_c: int = 72
    idle_sm_clock_mhz: int = 210
    max_sm_clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    # The ratio of the memory controller's utilisation to the GPU's utilisation.
    memory_util_factor: float = 0.6
    # PCIe traffic at 100 % utilisation.
    pcie_tx_bytes_per_s: int = 2_000_000_000
    pcie_rx_bytes_per_s: int = 6_000_000_000
    pcie_generation: int = 4
    pcie_width: int = 16
    # The number of NVLink links; 0 for a GPU without NVLink.
    nvlink_links: int = 12
    # The version as pynvml encodes it: 4 is NVLink 3.0, 6 is 4.0, 7 is 5.0.
    nvlink_version: int = 4
    # The bandwidth of one link in one direction.
    nvlink_mb_per_s: int = 25_000
    # NVLink traffic of all links together at 100 % utilisation.
    nvlink_tx_bytes_per_s: int = 20_000_000_000
    nvlink_rx_bytes_per_s: int = 10_000_000_000
    # Whether the GPU has GPU Performance Monitoring, as all GPUs since Hopper do.
    gpm: bool = False
    mig_mode: int = layout.MIG_DISABLED
    # The MIG instances; if there is any, MIG is enabled.
    mig: tuple[MigSpec, ...] = ()
    ecc: bool = True


def hopper(uuid: str, **changes: Any) -> GpuSpec:
    """Return an H100-SXM5-80GB, with ``changes`` to its fields."""
    h100 = GpuSpec(
        uuid,
        name="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        reserved_mib=551,
        idle_w=70.0,
        power_limit_w=700.0,
        idle_sm_clock_mhz=345,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        pcie_generation=5,
        nvlink_links=18,
        nvlink_version=6,
        gpm=True,
    )
    return replace(h100, **changes)


def check(gpus: Sequence[GpuSpec]) -> None:
    """Raise an error for properties that no node can have."""
    if len(gpus) > layout.MAX_DEVICES:
        raise RequestError(f"{len(gpus)} GPUs: a world has at most {layout.MAX_DEVICES}")
    for what, values in (("UUID", [gpu.uuid for gpu in gpus]), ("minor", [str(gpu.minor) for gpu in gpus])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise RequestError(f"{what} {', '.join(twice)}: more than one GPU of the world has it")
    for gpu in gpus:
        if not 0 <= gpu.reserved_mib < gpu.memory_mib:
            raise RequestError(
                f"{gpu.uuid}: reserved_mib {gpu.reserved_mib} must be less than memory_mib {gpu.memory_mib}"
            )


def fill(device: layout.DeviceStruct, index: int, gpu: GpuSpec) -> None:
    """Write a GPU to its place in the world, without its MIG instances."""
    pci = gpu.pci_bus_id or f"0:{index + 7:x}:0"
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(\.0)?", pci)
    if match is None:
        raise RequestError(
            f"pci_bus_id {pci!r} of {gpu.uuid}: must be DOMAIN:BUS:DEVICE in hex, such as 0:7:0"
        )
    device.uuid = gpu.uuid.encode()
    device.name = gpu.name.encode()
    device.minor_number = gpu.minor
    device.pci_domain, device.pci_bus, device.pci_device = (int(text, 16) for text in match.groups()[:3])
    device.pci_device_id = 0x20B010DE
    device.pcie_generation = gpu.pcie_generation
    device.pcie_width = gpu.pcie_width
    device.idle_power_mw = round(gpu.idle_w * 1000)
    device.power_limit_mw = round(gpu.power_limit_w * 1000)
    device.idle_temperature_c = gpu.idle_temperature_c
    device.full_temperature_c = gpu.full_temperature_c
    device.idle_sm_clock_mhz = gpu.idle_sm_clock_mhz
    device.max_sm_clock_mhz = gpu.max_sm_clock_mhz
    device.memory_clock_mhz = gpu.memory_clock_mhz
    device.nvlink_links = gpu.nvlink_links
    device.nvlink_version = gpu.nvlink_version
    device.nvlink_mb_per_s = gpu.nvlink_mb_per_s
    device.nvlink_tx_bytes_per_s = gpu.nvlink_tx_bytes_per_s
    device.nvlink_rx_bytes_per_s = gpu.nvlink_rx_bytes_per_s
    device.gpm = int(gpu.gpm)
    device.mig_mode = layout.MIG_ENABLED if gpu.mig else gpu.mig_mode
    device.ecc_mode = int(gpu.ecc)
    device.memory_mib = gpu.memory_mib
    device.reserved_mib = gpu.reserved_mib
    device.pcie_tx_bytes_per_s = gpu.pcie_tx_bytes_per_s
    device.pcie_rx_bytes_per_s = gpu.pcie_rx_bytes_per_s
    device.memory_util_factor = gpu.memory_util_factor


def instances(specs: Sequence[MigSpec], device: int) -> list[layout.InstanceStruct]:
    """Lay out MIG instances on a device."""
    numbers = numbered([spec.profile for spec in specs])
    laid = [
        layout.InstanceStruct(
            uuid=spec.uuid.encode(),
            profile=spec.profile.encode(),
            exists=1,
            device=device,
            index=index,
            gpu_instance=number,
            slices=MIG_PROFILES[spec.profile].slices,
            sm_count=MIG_PROFILES[spec.profile].sm_count,
            memory_mib=MIG_PROFILES[spec.profile].memory_mib,
        )
        for index, (spec, number) in enumerate(zip(specs, numbers, strict=True))
    ]
    slices = sum(instance.slices for instance in laid)
    if slices > layout.GPU_SLICES:
        raise RequestError(f"MIG instances of {slices} slices: a GPU has {layout.GPU_SLICES}")
    return laid


def numbered(profiles: Sequence[str]) -> list[int]:
    """Return the GPU instance IDs of MIG instances of these kinds, as a driver would number them."""
    numbers: list[int] = []
    for name in profiles:
        profile = MIG_PROFILES.get(name)
        if profile is None:
            raise RequestError(f"MIG profile {name!r}: must be one of {', '.join(MIG_PROFILES)}")
        numbers.append(next(number for number in range(profile.first_id, 2**16) if number not in numbers))
    return numbers
