"""Read the properties of a GPU or MIG instance when it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvml_calls import GoneError, check_gone, twice
from slurm_gpu.node.gpu.reading import DeviceProperties
from slurm_gpu.plausible import is_plausible, is_text, is_word

T = TypeVar("T")
N = TypeVar("N", int, float)

# Bytes per second per lane and direction by PCIe generation, from the transfer rates and encodings of the
# standard.
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


def gpu_facts(handle: Any, index: int) -> DeviceProperties:
    """Read the properties of a GPU; raise GoneError if it is gone, or NvmlError if it has no UUID."""
    milliwatts = _of(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return DeviceProperties(
        uuid=_uuid(handle),
        index=index,
        minor=_number("minor", _of(pynvml.nvmlDeviceGetMinorNumber, handle)),
        name=_name(handle),
        memory_bytes=_number("memory_bytes", _of(_memory, handle)),
        power_limit_w=None if milliwatts is None else _number("power_limit_w", milliwatts / 1000),
        sm_clock_max_mhz=_number(
            "sm_clock_max_mhz", _of(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
        ),
        pcie_bytes_per_s=_number("pcie_bytes_per_s", _pcie(handle)),
        nvlink_bytes_per_s=_number("nvlink_bytes_per_s", _nvlink(handle)),
        pci_bus_id=_word(_of(_bus_id, handle)),
        driver=_driver(),
    )


def instance_facts(handle: Any, gpu: DeviceProperties) -> DeviceProperties:
    """Read the properties of a MIG instance of that GPU; raise the same errors as `gpu_facts`."""
    return DeviceProperties(
        uuid=_uuid(handle),
        index=gpu.index,
        minor=gpu.minor,
        name=_name(handle),
        memory_bytes=_number("memory_bytes", _of(_memory, handle)),
        parent=gpu.uuid,
        gpu_instance=_number("gpu_instance", _of(pynvml.nvmlDeviceGetGpuInstanceId, handle)),
        compute_instance=_number("compute_instance", _of(pynvml.nvmlDeviceGetComputeInstanceId, handle)),
        pci_bus_id=gpu.pci_bus_id,
        driver=gpu.driver,
    )


def instances(gpu: Any) -> list[Any]:
    """Return the handles of the GPU's MIG instances, or []; raise GoneError if the GPU is gone."""
    mode = _of(pynvml.nvmlDeviceGetMigMode, gpu)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    slots = _number("mig_count", _of(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu))
    if slots is None:
        return []
    found = [_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, slot) for slot in range(slots)]
    return [handle for handle in found if handle is not None]


def _of(ask: Callable[..., T], *arguments: Any) -> T | None:
    """Call the binding; return None on an error. Raise GoneError if the device is gone."""
    try:
        return twice(ask, *arguments)
    except pynvml.NVMLError as error:
        check_gone(error.value)
    except Exception:  # for example, text that is not UTF-8; the field is then unknown
        pass
    return None


def _number(name: str, value: N | None) -> N | None:
    """Return the value, or None if it is implausible."""
    return value if value is not None and is_plausible(name, value) else None


def _uuid(handle: Any) -> str:
    uuid = _word(_of(pynvml.nvmlDeviceGetUUID, handle))
    if uuid is None:
        raise NvmlError("the device has no UUID")
    return uuid


def _word(text: str | bytes | None) -> str | None:
    """Return the text, or None if slurm-gpudbd would reject it as a name."""
    return text if isinstance(text, str) and is_word(text) else None


def _name(handle: Any) -> str | None:
    name = _of(pynvml.nvmlDeviceGetName, handle)
    return name if isinstance(name, str) and is_text(name) else None


def _driver() -> str | None:
    try:
        return _word(_of(pynvml.nvmlSystemGetDriverVersion))
    except GoneError:  # calls on the GPU itself report the loss
        return None


def _bus_id(handle: Any) -> str:
    bus_id: str = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id


def _memory(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _pcie(handle: Any) -> float | None:
    generation = _of(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _of(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if generation is None or width is None or generation not in _LANE_BYTES_PER_S:
        return None
    return float(width * _LANE_BYTES_PER_S[generation])


def _nvlink(handle: Any) -> float | None:
    """Return the total bandwidth of all active links, or None if the GPU has no NVLink."""
    count, common = _fields(handle, [_NVLINK_COUNT, _NVLINK_SPEED])
    if not count or not is_plausible("nvlink_count", count):
        return None
    states = [_of(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(count)]
    links = [link for link, state in enumerate(states) if state != pynvml.NVML_FEATURE_DISABLED]
    # Read the speed of each link if the speeds differ, or if a newer GPU does not report a common speed.
    each = [common] * len(links) if common else _fields(handle, [(_NVLINK_SPEED_OF, link) for link in links])
    megabytes = sum(speed for speed in each if speed is not None)
    return megabytes * 1e6 if megabytes else None


def _fields(handle: Any, wanted: list[Any]) -> list[int | None]:
    values = _of(pynvml.nvmlDeviceGetFieldValues, handle, wanted) if wanted else None
    if values is None:
        return [None] * len(wanted)
    return [v.value.uiVal if v.nvmlReturn == pynvml.NVML_SUCCESS else None for v in values]
