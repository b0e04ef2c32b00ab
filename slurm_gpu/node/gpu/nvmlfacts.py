"""What a GPU or MIG instance is, asked when it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from slurm_gpu.node.gpu.nvmlcalls import check_gone
from slurm_gpu.node.gpu.reading import Facts

T = TypeVar("T")

# Bytes per second of a lane in one direction, by PCIe generation: the standard's gigatransfers and encoding.
_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
# nvml.h: NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_GET_SPEED
_NVLINK_SPEED, _NVLINK_COUNT, _NVLINK_SPEED_OF = 90, 91, 164


def gpu_facts(handle: Any, index: int) -> Facts:
    """Of the GPU with that NVML index; raises GoneError, or NVMLError if it has no UUID."""
    milliwatts = _of(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    bus = _of(pynvml.nvmlDeviceGetPciInfo, handle)
    return Facts(
        uuid=_word(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        minor=_of(pynvml.nvmlDeviceGetMinorNumber, handle),
        name=_name(handle),
        memory_bytes=_memory(handle),
        power_limit_w=None if milliwatts is None else milliwatts / 1000,
        sm_clock_max_mhz=_of(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        pcie_bytes_per_s=_pcie(handle),
        nvlink_bytes_per_s=_nvlink(handle),
        pci_bus_id=None if bus is None else _word(bus.busId),
        driver=_driver(),
    )


def instance_facts(handle: Any, gpu: Facts) -> Facts:
    """Of a MIG instance of that GPU; raises as `gpu_facts` does."""
    return Facts(
        uuid=_word(pynvml.nvmlDeviceGetUUID(handle)),
        index=gpu.index,
        minor=gpu.minor,
        name=_name(handle),
        memory_bytes=_memory(handle),
        parent=gpu.uuid,
        gpu_instance=_of(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance=_of(pynvml.nvmlDeviceGetComputeInstanceId, handle),
        pci_bus_id=gpu.pci_bus_id,
        driver=gpu.driver,
    )


def instances(gpu: Any) -> list[Any]:
    """Handles of the MIG instances of a GPU, none where it is not in that mode; raises GoneError."""
    mode = _of(pynvml.nvmlDeviceGetMigMode, gpu)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    slots = _of(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu)
    if slots is None:
        return []
    found = [_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, slot) for slot in range(slots)]
    return [handle for handle in found if handle is not None]


def _of(ask: Callable[..., T], *arguments: Any) -> T | None:
    """None where the device cannot say."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        check_gone(error.value)
        return None


def _word(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _name(handle: Any) -> str | None:
    name = _of(pynvml.nvmlDeviceGetName, handle)
    return None if name is None else _word(name)


def _driver() -> str | None:
    version = _of(pynvml.nvmlSystemGetDriverVersion)
    return None if version is None else _word(version)


def _memory(handle: Any) -> int | None:
    memory = _of(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _pcie(handle: Any) -> float | None:
    generation = _of(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _of(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if generation is None or width is None or generation not in _LANE_BYTES_PER_S:
        return None
    return float(width * _LANE_BYTES_PER_S[generation])


def _nvlink(handle: Any) -> float | None:
    """All active links together; None without NVLink."""
    count, common = _fields(handle, [_NVLINK_COUNT, _NVLINK_SPEED])
    if not count:
        return None
    states = [_of(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(count)]
    links = [link for link, state in enumerate(states) if state != pynvml.NVML_FEATURE_DISABLED]
    # Where the links differ, or newer ones are not told in common: each for itself.
    each = [common] * len(links) if common else _fields(handle, [(_NVLINK_SPEED_OF, link) for link in links])
    megabytes = sum(speed for speed in each if speed is not None)
    return megabytes * 1e6 if megabytes else None


def _fields(handle: Any, wanted: list[Any]) -> list[int | None]:
    values = _of(pynvml.nvmlDeviceGetFieldValues, handle, wanted) if wanted else None
    if values is None:
        return [None] * len(wanted)
    return [v.value.uiVal if v.nvmlReturn == pynvml.NVML_SUCCESS else None for v in values]
