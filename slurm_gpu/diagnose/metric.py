"""Define the compared metrics in a module that does not import numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum


class Metric(StrEnum):
    """A compared metric. Its unit is a fraction of 1, or bytes/s for NETWORK and INFINIBAND.

    CPU, NETWORK and INFINIBAND describe the host, so their values are equal for all workers of a node.
    """

    UTIL = "util"
    """Share of the time in which a kernel ran. A GPU that spins while it waits for peers counts as busy."""
    SM_ACTIVE = "sm_active"
    """Mean share of SMs with a resident warp."""
    TENSOR = "tensor"
    """Share of cycles in which the tensor pipe was active."""
    DRAM = "dram"
    MEM_USED = "mem_used"
    POWER = "power"
    """Power relative to the enforced limit, or to the job's highest power if a window's limit is unknown."""
    SM_CLOCK = "sm_clock"
    """Clock relative to the maximum clock, or to the job's highest value if the maximum is unknown."""
    THROTTLE = "throttle"
    """Share of the time in which a fault of cooling or power supply lowered the clock."""
    PCIE = "pcie"
    """Total of both directions, relative to the link's rate or, if unknown, to the job's highest value."""
    NVLINK = "nvlink"
    CPU = "cpu"
    NETWORK = "network"
    INFINIBAND = "infiniband"


HOST_METRICS = (Metric.CPU, Metric.NETWORK, Metric.INFINIBAND)
# Bytes/s that a node exchanges regardless of its jobs: logs, monitoring and home directories.
BACKGROUND = 5e6


def read_host_metrics(host: Mapping[str, float]) -> tuple[float, float, float]:
    """Return the last HOST_METRICS of a node from `host` of a live post; NaN if unknown."""
    return (
        host.get("cpu_pct", math.nan) / 100,
        host.get("net_rx_bytes_per_s", math.nan) + host.get("net_tx_bytes_per_s", math.nan),
        host.get("ib_rx_bytes_per_s", math.nan) + host.get("ib_tx_bytes_per_s", math.nan),
    )
