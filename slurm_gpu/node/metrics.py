"""Expose metrics to Prometheus: the last values of the GPUs, their jobs, and the state of slurm-gpud.

Only current devices and running jobs have series, and no label contains text from users. Values that were not
measured have no series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu import __version__
from slurm_gpu.node.gpu.reading import Activity, DeviceProperties, Reading
from slurm_gpu.node.live import CachingReader, LatestReading
from slurm_gpu.node.process.procfs import PAGE_BYTES, TICKS_PER_S, Processes

Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]


class Exposition:
    """Builds a page in Prometheus' text format 0.0.4, one metric family at a time."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> None:
        """Add a metric family; leave out series whose value is None, and families without series."""
        lines = [
            f"{name}{_braces(labels)} {_number(value)}" for labels, value in samples if value is not None
        ]
        if lines:
            self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *lines]

    @property
    def text(self) -> str:
        """Return the text."""
        return "".join(line + "\n" for line in self._lines)


def _braces(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHealth:
    """The state of slurm-gpud."""

    reads: int
    failed_reads: int
    open_jobs: int
    spool_bytes: int
    spool_items: int
    spool_failing: bool
    shipment_failures: int
    reader_exits: int
    implausible: Mapping[str, int]
    pids: Mapping[str, int]


def expose(
    node: str,
    seen: CachingReader,
    jobs_by_device: Mapping[str, Sequence[int]],
    health: DaemonHealth,
    now_s: float,
) -> str:
    """Return the text of /metrics."""
    out = Exposition()
    _expose_devices(out, node, seen, now_s)
    out.family(
        "slurm_gpu_allocated",
        "gauge",
        "Jobs to which the device is allocated, by raw job ID.",
        [
            ({**_labels(node, facts), "job": str(job)}, 1)
            for facts in seen.facts
            for job in jobs_by_device.get(facts.uuid, ())
        ],
    )
    _expose_health(out, node, health)
    return out.text


def _labels(node: str, facts: DeviceProperties) -> Labels:
    return {"node": node, "index": str(facts.index), "uuid": facts.uuid}


def _expose_devices(out: Exposition, node: str, seen: CachingReader, now_s: float) -> None:
    devices = [(_labels(node, facts), facts, seen.of(facts.uuid, now_s)) for facts in seen.facts]
    known = [(labels, last) for labels, _, last in devices if last is not None]
    details = [(labels, last.detail) for labels, last in known if last.detail is not None]
    out.family(
        "slurm_gpu_device_info",
        "gauge",
        "Name and driver of the device.",
        [
            ({**labels, "name": facts.name or "", "driver": facts.driver or ""}, 1)
            for labels, facts, _ in devices
        ],
    )
    out.family(
        "slurm_gpu_utilization_ratio",
        "gauge",
        "Fraction of time in which a kernel ran; even at 1, many SMs may be idle.",
        [(labels, _scaled(last.util_pct, 0.01)) for labels, last in known],
    )
    out.family(
        "slurm_gpu_memory_used_bytes",
        "gauge",
        "Memory in use.",
        [(labels, _memory(last, "used")) for labels, last in known],
    )
    out.family(
        "slurm_gpu_memory_total_bytes",
        "gauge",
        "Total memory.",
        [(labels, _memory(last, "total")) for labels, last in known],
    )
    for name, help_text, attribute, factor in _GAUGES:
        values = [(labels, _scaled(getattr(detail, attribute), factor)) for labels, detail in details]
        out.family(f"slurm_gpu_{name}", "gauge", help_text, values)
    for name, help_text, attribute in _ACTIVITIES:
        values = [(labels, _activity(detail.activity, attribute)) for labels, detail in details]
        out.family(f"slurm_gpu_{name}_ratio", "gauge", help_text, values)
    for name, help_text, attribute, factor in _COUNTERS:
        values = [(labels, _counter(detail, attribute, factor)) for labels, detail in details]
        out.family(f"slurm_gpu_{name}_total", "counter", help_text, values)
    out.family(
        "slurm_gpu_processes",
        "gauge",
        "Number of processes with a context on the device.",
        [(labels, None if d.processes is None else len(d.processes)) for labels, d in details],
    )
    out.family(
        "slurm_gpu_throttled",
        "gauge",
        "Active throttle reasons.",
        [({**labels, "reason": reason}, 1) for labels, d in details for reason in d.throttle or ()],
    )


_GAUGES = [
    (
        "memory_controller_utilization_ratio",
        "Fraction of time in which memory was accessed.",
        "mem_util_pct",
        0.01,
    ),
    ("power_watts", "Power drawn.", "power_w", 1),
    ("temperature_celsius", "Temperature of the chip.", "temp_c", 1),
    ("sm_clock_hertz", "Clock rate of the SMs.", "sm_clock_mhz", 1e6),
]
_ACTIVITIES = [
    ("sm_active", "Fraction of busy SMs.", "sm_active"),
    ("sm_occupancy", "Resident warps as a fraction of the maximum.", "sm_occupancy"),
    ("tensor_active", "Fraction of time in which tensor cores were active.", "tensor"),
    ("dram_active", "Fraction of memory bandwidth used.", "dram"),
]
_COUNTERS = [
    ("energy_joules", "Energy used since the driver was loaded.", "energy_mj", 1e-3),
    ("pcie_receive_bytes", "Bytes received over PCIe; the counter wraps.", "pcie_rx_bytes", 1),
    ("pcie_transmit_bytes", "Bytes sent over PCIe; the counter wraps.", "pcie_tx_bytes", 1),
    ("nvlink_receive_bytes", "Bytes received over NVLink.", "nvlink_rx_bytes", 1),
    ("nvlink_transmit_bytes", "Bytes sent over NVLink.", "nvlink_tx_bytes", 1),
    ("ecc_corrected_errors", "Memory errors that were corrected.", "ecc_corrected", 1),
    ("ecc_uncorrected_errors", "Memory errors that could not be corrected.", "ecc_uncorrected", 1),
]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _memory(seen: LatestReading, field: str) -> float | None:
    return None if seen.memory is None else getattr(seen.memory, field)


def _activity(activity: Activity | None, field: str) -> float | None:
    return None if activity is None else getattr(activity, field)


def _counter(detail: Reading, field: str, factor: float) -> float | None:
    counter = getattr(detail, field)
    return None if counter is None else counter.value * factor


def _expose_health(out: Exposition, node: str, health: DaemonHealth) -> None:
    own = {"node": node}
    out.family("slurm_gpud_info", "gauge", "This slurm-gpud.", [({**own, "version": __version__}, 1)])
    for name, kind, help_text, value in (
        ("samples_total", "counter", "Number of samples of the GPUs.", health.reads),
        (
            "failed_samples_total",
            "counter",
            "Number of times that a device did not answer when sampled.",
            health.failed_reads,
        ),
        ("open_jobs", "gauge", "Number of jobs with GPUs on this node.", health.open_jobs),
        ("spool_bytes", "gauge", "Size of the spool.", health.spool_bytes),
        (
            "spool_items",
            "gauge",
            "Number of records and events in the spool that have not been shipped.",
            health.spool_items,
        ),
        ("spool_failing", "gauge", "1 while the spool cannot be written.", int(health.spool_failing)),
        (
            "shipment_failures",
            "gauge",
            "Number of failed shipments since the last successful one.",
            health.shipment_failures,
        ),
        (
            "reader_exits_total",
            "counter",
            "Number of unexpected exits of the process that calls NVML.",
            health.reader_exits,
        ),
    ):
        out.family(f"slurm_gpud_{name}", kind, help_text, [(own, value)])
    out.family(
        "slurm_gpud_implausible_values_total",
        "counter",
        "Number of impossible values, which are recorded as gaps.",
        [({**own, "field": field}, n) for field, n in sorted(health.implausible.items())],
    )
    usage = {name: _usage(pid) for name, pid in health.pids.items()}
    out.family(
        "slurm_gpud_cpu_seconds_total",
        "counter",
        "CPU time of slurm-gpud's processes.",
        [({**own, "process": name}, used[0]) for name, used in usage.items() if used is not None],
    )
    out.family(
        "slurm_gpud_resident_memory_bytes",
        "gauge",
        "Memory of slurm-gpud's processes.",
        [({**own, "process": name}, used[1]) for name, used in usage.items() if used is not None],
    )


def _usage(pid: int) -> tuple[float, int] | None:
    """Return the CPU seconds and resident bytes of a process, or None if it has ended."""
    try:
        stat = Processes().stat(pid)
    except OSError:
        return None
    return stat.own_ticks / TICKS_PER_S, stat.resident_pages * PAGE_BYTES
