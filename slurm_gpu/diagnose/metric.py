"""Name the metrics that are compared, without importing numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum


class Metric(StrEnum):
    """A compared metric, as a fraction of 1; NETWORK and INFINIBAND are in bytes/s.

    The metrics from CPU on belong to the host, so they are equal for all workers of a node.
    """

    UTIL = "util"
    """Share of the time in which a kernel ran; a GPU that spins for its peers counts as busy."""
    SM_ACTIVE = "sm_active"
    """Share of SMs that have a resident warp, as a mean over time."""
    TENSOR = "tensor"
    """Share of cycles in which the tensor pipe was active."""
    DRAM = "dram"
    MEM_USED = "mem_used"
    POWER = "power"
    """Relative to the enforced limit, or in a window to the job's greatest power if the limit is unknown."""
    SM_CLOCK = "sm_clock"
    """Relative to the maximum clock, or like POWER if it is unknown."""
    THROTTLE = "throttle"
    """Share of the time in which a fault (heat, power supply) lowered the clock."""
    PCIE = "pcie"
    """Both directions together, relative to the link's rate in both, or like POWER if it is unknown."""
    NVLINK = "nvlink"
    CPU = "cpu"
    NETWORK = "network"
    INFINIBAND = "infiniband"


HOST_METRICS = (Metric.CPU, Metric.NETWORK, Metric.INFINIBAND)
# Bytes/s that a node exchanges regardless of its jobs: logs, monitoring, home directories.
BACKGROUND = 5e6


def read_host_metrics(host: Mapping[str, float]) -> tuple[float, float, float]:
    """Convert a node's last values (`host` of a live post) to the values of HOST_METRICS; NaN if unknown."""
    return (
        host.get("cpu_pct", math.nan) / 100,
        host.get("net_rx_bytes_per_s", math.nan) + host.get("net_tx_bytes_per_s", math.nan),
        host.get("ib_rx_bytes_per_s", math.nan) + host.get("ib_tx_bytes_per_s", math.nan),
    )
