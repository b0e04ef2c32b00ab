"""The binary layout of the world file, as defined in lab/nvml/world.h."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_int64, c_uint32, c_uint64

MAGIC = int.from_bytes(b"GPUWORLD", "little")
VERSION = 7
MAX_DEVICES = 16
MAX_INSTANCES = 56
MAX_TARGETS = MAX_DEVICES + MAX_INSTANCES
GPU_SLICES = 7
MAX_XIDS = 64
MAX_FUNCTIONS = 128
MAX_FIELDS = 512
MAX_PROCESSES = 1024
MAX_POINTS = 512
APPLICATION_BYTES = 36

SLOT_FREE = 0
SLOT_ACTIVE = 1

SAMPLES_PRESENT = 0
SAMPLES_MISSING = 1
SAMPLES_MISSING_IF_IDLE = 2

# The quantities that are integrated over time, in the order of ``enum total``.
TOTALS = ("busy", "sm_active", "sm_occupancy", "tensor", "dram", "power", "pcie", "nvlink")

PROCESS_MPS = 1
NO_INSTANCE = 0xFFFFFFFF

MIG_DISABLED = 0
MIG_ENABLED = 1


class PointStruct(ctypes.Structure):
    """``struct world_point``."""

    _fields_ = (("time_ns", c_uint64), ("util_pct", c_double), ("memory_mib", c_double))


class FaultsStruct(ctypes.Structure):
    """``struct world_faults``."""

    _fields_ = (
        ("lost_at_ns", c_uint64),
        ("latency_ns", c_uint64),
        ("energy_offset_mj", c_uint64),
        ("pcie_tx_offset", c_uint64),
        ("pcie_rx_offset", c_uint64),
        ("nvlink_tx_offset", c_uint64),
        ("nvlink_rx_offset", c_uint64),
        ("clocks_event_reasons", c_uint64),
        ("reasons_from_ns", c_uint64),
        ("reasons_until_ns", c_uint64),
        ("ecc_corrected", c_uint64),
        ("ecc_uncorrected", c_uint64),
        ("unsupported", c_uint64 * (MAX_FUNCTIONS // 64)),
        ("unsupported_fields", c_uint64 * (MAX_FIELDS // 64)),
        ("hanging", c_uint64 * (MAX_FUNCTIONS // 64)),
        ("samples", c_uint32),
        ("pcie_counter_bits", c_uint32),
    )


class DeviceStruct(ctypes.Structure):
    """``struct world_device``."""

    _fields_ = (
        ("uuid", c_char * 64),
        ("name", c_char * 64),
        ("minor_number", c_uint32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_device_id", c_uint32),
        ("pcie_generation", c_uint32),
        ("pcie_width", c_uint32),
        ("idle_power_mw", c_uint32),
        ("power_limit_mw", c_uint32),
        ("idle_temperature_c", c_uint32),
        ("full_temperature_c", c_uint32),
        ("idle_sm_clock_mhz", c_uint32),
        ("max_sm_clock_mhz", c_uint32),
        ("memory_clock_mhz", c_uint32),
        ("mig_mode", c_uint32),
        ("ecc_mode", c_uint32),
        ("gpm", c_uint32),
        ("nvlink_links", c_uint32),
        ("nvlink_version", c_uint32),
        ("nvlink_mb_per_s", c_uint32),
        ("memory_mib", c_uint64),
        ("reserved_mib", c_uint64),
        ("pcie_tx_bytes_per_s", c_uint64),
        ("pcie_rx_bytes_per_s", c_uint64),
        ("nvlink_tx_bytes_per_s", c_uint64),
        ("nvlink_rx_bytes_per_s", c_uint64),
        ("memory_util_factor", c_double),
        ("high_pct_ns", c_uint64 * len(TOTALS)),
        ("energy_high_mj", c_uint64),
        ("ecc_corrected_before", c_uint64),
        ("ecc_uncorrected_before", c_uint64),
        ("faults", FaultsStruct),
    )


class InstanceStruct(ctypes.Structure):
    """``struct world_instance``."""

    _fields_ = (
        ("uuid", c_char * 64),
        ("profile", c_char * 24),
        ("exists", c_uint32),
        ("device", c_uint32),
        ("index", c_uint32),
        ("gpu_instance", c_uint32),
        ("slices", c_uint32),
        ("sm_count", c_uint32),
        ("memory_mib", c_uint64),
    )


class ProcessStruct(ctypes.Structure):
    """``struct world_process``."""

    _fields_ = (
        ("state", c_uint32),
        ("target", c_uint32),
        ("pid", c_uint32),
        ("n_points", c_uint32),
        ("flags", c_uint32),
        ("application", c_char * APPLICATION_BYTES),
        ("start_ticks", c_uint64),
        ("end_ns", c_uint64),
        ("factors", c_double * len(TOTALS)),
        ("clock", c_double),
        ("reasons", c_uint64),
        ("points", PointStruct * MAX_POINTS),
    )


class HistoryStruct(ctypes.Structure):
    """``struct world_history``."""

    _fields_ = (("until_ns", c_uint64), ("pct_ns", c_double * len(TOTALS) * MAX_TARGETS))


class XidStruct(ctypes.Structure):
    """``struct world_xid``."""

    _fields_ = (("time_ns", c_uint64), ("code", c_uint64), ("device", c_uint32), ("gpu_instance", c_uint32))


class CallStruct(ctypes.Structure):
    """``struct world_call``."""

    _fields_ = (
        ("name", c_char * 56),
        ("count", c_uint64),
        ("cpu_ns", c_uint64),
        ("wait_ns", c_uint64),
        ("item_cpu_ns", c_uint64),
    )


class WorldStruct(ctypes.Structure):
    """``struct world``: the whole file."""

    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size", c_uint32),
        ("n_devices", c_uint32),
        ("n_functions", c_uint32),
        ("boot_ns", c_uint64),
        ("fake_now_ns", c_uint64),
        ("clock_step_at_ns", c_uint64),
        ("clock_step_ns", c_int64),
        ("clock_before_ns", c_int64),
        ("driver_loaded", c_uint32),
        ("folds", c_uint32),
        ("slots_used", c_uint32),
        ("driver_loads", c_uint32),
        ("checked_alive_ns", c_uint64),
        ("devices", DeviceStruct * MAX_DEVICES),
        ("calls", CallStruct * MAX_FUNCTIONS),
        ("history", HistoryStruct * 2),
        ("instances", InstanceStruct * MAX_INSTANCES),
        ("n_xids", c_uint64),
        ("xids", XidStruct * MAX_XIDS),
        ("processes", ProcessStruct * MAX_PROCESSES),
    )
