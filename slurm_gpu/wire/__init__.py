"""Define the types of the data that a node ships (docs/contracts.md, section 1).

None means not measured, and 0 is a measured value. Every statistic contains the seconds that it covers, so
that statistics of several segments and devices can be merged without bias. `from_wire` validates its input
and raises RecordError, which names the invalid field. `to_wire` omits fields that are None.
"""

from slurm_gpu.wire.device import DeviceFacts
from slurm_gpu.wire.event import Event
from slurm_gpu.wire.host import Host
from slurm_gpu.wire.host_run import HOST_CLUSTER, HostRun
from slurm_gpu.wire.live import Live, LiveDevice
from slurm_gpu.wire.quantities import (
    HISTOGRAM_BINS,
    Histogram,
    Mean,
    Total,
    histogram_mean,
    histogram_quantile,
    merge_histograms,
    merge_means,
    merge_totals,
)
from slurm_gpu.wire.record import Record
from slurm_gpu.wire.timeline import Timeline, merge_timelines
from slurm_gpu.wire.window import Window

__all__ = [
    "HISTOGRAM_BINS",
    "HOST_CLUSTER",
    "WIRE_RANGE",
    "WIRE_VERSION",
    "DeviceFacts",
    "Event",
    "Histogram",
    "Host",
    "HostRun",
    "Live",
    "LiveDevice",
    "Mean",
    "Record",
    "Timeline",
    "Total",
    "Window",
    "histogram_mean",
    "histogram_quantile",
    "merge_histograms",
    "merge_means",
    "merge_timelines",
    "merge_totals",
]

WIRE_VERSION = 2
"""Each minor release has its own version: 1 for 0.1, and 2 for 0.2 (docs/contracts.md, section 5)."""
WIRE_RANGE = (WIRE_VERSION - 1, WIRE_VERSION)
"""The versions that this release reads: its own version and the previous release's version."""
