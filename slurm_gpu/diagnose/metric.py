"""The metrics that are compared, by name: known without numpy as well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum


class Metric(StrEnum):
    """What is compared. All are fractions of 1 (0–1), but for NETWORK and INFINIBAND: bytes/s.

    Those from CPU on are the host's: all workers of a node have the same.
    """

    UTIL = "util"
    """Of the time in which some kernel ran; one that waits for its peers spins, and counts."""
    SM_ACTIVE = "sm_active"
    """Of the SMs and the time with a warp on them."""
    TENSOR = "tensor"
    """Of the cycles in which the tensor pipe was active."""
    DRAM = "dram"
    MEM_USED = "mem_used"
    POWER = "power"
    """Of the enforced limit; in windows of GPUs whose limit is not known, of the job's greatest."""
    SM_CLOCK = "sm_clock"
    """Of the greatest clock; likewise."""
    THROTTLE = "throttle"
    """Of the time in which a fault (heat, power supply) held the clock down."""
    PCIE = "pcie"
    """Both directions together, of what the link carries in both; likewise."""
    NVLINK = "nvlink"
    CPU = "cpu"
    NETWORK = "network"
    INFINIBAND = "infiniband"


HOST_METRICS = (Metric.CPU, Metric.NETWORK, Metric.INFINIBAND)
BACKGROUND = 5e6
"""Bytes/s that a node sends and receives whatever its jobs do: logs, monitoring, home directories."""


def of_host(told: Mapping[str, float]) -> tuple[float, float, float]:
    """A node's last values (`host` of a live post) as HOST_METRICS; NaN where it did not tell."""
    return (
        told.get("cpu_pct", math.nan) / 100,
        told.get("net_rx_bytes_per_s", math.nan) + told.get("net_tx_bytes_per_s", math.nan),
        told.get("ib_rx_bytes_per_s", math.nan) + told.get("ib_tx_bytes_per_s", math.nan),
    )
