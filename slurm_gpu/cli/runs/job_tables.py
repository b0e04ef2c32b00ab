"""Print the tables of `slurm-gpu job`: GPU use, timelines, host use and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import console, is_narrow, print_table
from slurm_gpu.cli.runs.device_names import DeviceNames
from slurm_gpu.cli.runs.event_text import event_text
from slurm_gpu.client.database_client import DeviceTimeline
from slurm_gpu.reports.run_use.device_use import DeviceUse
from slurm_gpu.reports.run_use.host_use import HostUse
from slurm_gpu.text.cells import GAP, energy, memory, moment, number, percent, span, text, volume
from slurm_gpu.text.sparkline import GAP as NO_SIGN
from slurm_gpu.text.sparkline import sparkline, values_per_sign
from slurm_gpu.wire import Event, Timeline
from slurm_gpu.wire.timeline import common_bins

_USE_COLUMNS = ("node", "GPU", "util", "p5", "p50", "p95", "memory", "max", "power", "energy", "sampled")
_USE_SPARE = ("p5", "p95", "energy", "p50", "max", "power", "sampled", "node")
_HARDWARE_SPARE = ("occup.", "DRAM", "max W", "MHz", "throttled", "NVLink in/out", "node")
_HOST_SPARE = ("read", "written", "InfiniBand in/out", "network in/out", "CPU time")
"""Columns of each table to drop on a narrow terminal, in order."""

_LEAST_SIGNS, _MOST_SIGNS = len("utilisation"), 40
"""The minimum and maximum width of a timeline, which depends on the width of the terminal."""

_MAX_EVENTS = 20
_LEAST_THROTTLED_S = 1.0
_REASONS = {
    "sw_power_cap": "power limit",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat (hardware)",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware",
    "sync_boost": "sync boost",
    "display_clock_setting": "display",
    "applications_clocks_setting": "clocks set by hand",
}
"""NVML's reasons for throttling, without `gpu_idle`, which is not throttling."""


def print_use(uses: Sequence[DeviceUse], names: DeviceNames, min_coverage: float) -> None:
    """Print utilisation, memory, power and energy, one row per GPU."""
    rows = [
        [
            use.node,
            names.cell(use.device),
            number(use.util_mean_pct, 1),
            number(use.util_p5_pct),
            number(use.util_p50_pct),
            number(use.util_p95_pct),
            memory(use.mem_mean_mib),
            memory(use.mem_max_mib),
            f"{number(use.power_mean_w)}W" if use.stands_for_all(use.power_s, min_coverage) else GAP,
            energy(use.energy_j) if use.stands_for_all(use.energy_s, min_coverage) else GAP,
            number(use.coverage, 2),
        ]
        for use in uses
    ]
    print_table(_USE_COLUMNS, rows, right=_USE_COLUMNS[2:], whole=("node", "GPU"), spare=_USE_SPARE)


def print_hardware(uses: Sequence[DeviceUse], names: DeviceNames, min_coverage: float) -> None:
    """Print throttling and the use of the parts of each GPU; leave out columns without measurements."""

    def link(name: str) -> Callable[[DeviceUse], str]:
        def cell(use: DeviceUse) -> str:
            if not use.stands_for_all(getattr(use, f"{name}_s"), min_coverage):
                return GAP
            return _in_out(getattr(use, f"{name}_rx_bytes"), getattr(use, f"{name}_tx_bytes"))

        return cell

    busy: dict[str, Callable[[DeviceUse], str]] = {
        "SM": lambda use: percent(use.sm_active_frac),
        "occup.": lambda use: percent(use.sm_occupancy_frac),
        "tensor": lambda use: percent(use.tensor_frac),
        "DRAM": lambda use: percent(use.dram_frac),
        "MHz": lambda use: number(use.sm_clock_mean_mhz),
        "max W": lambda use: number(use.power_max_w),
        "max °C": lambda use: number(use.temp_max_c),
        "ECC": _ecc,
    }
    links: dict[str, Callable[[DeviceUse], str]] = {
        "PCIe in/out": link("pcie"),
        "NVLink in/out": link("nvlink"),
        "throttled": _throttled,
    }
    heads = [(use.node, names.cell(use.device)) for use in uses]
    for columns in (busy, links) if is_narrow() else ({**busy, **links},):
        cells = {name: [cell(use) for use in uses] for name, cell in columns.items()}
        _print_measured(heads, cells, ("node", "GPU"), _HARDWARE_SPARE, left=("throttled",))


def print_timelines(courses: Sequence[DeviceTimeline], names: DeviceNames, zone: ZoneInfo) -> None:
    """Print utilisation and memory over time, one row per GPU; print nothing without timelines."""
    known = [(timelines, timelines.timeline) for timelines in courses if timelines.timeline is not None]
    if not known:
        return
    known.sort(key=lambda one: (one[0].node, *names.place(one[0].device)))
    width_s, first_s, n_bins = common_bins([timeline for _, timeline in known])
    columns = ("node", "GPU", "utilisation", "memory")
    heads = [(timelines.node, names.cell(timelines.device)) for timelines, _ in known]
    taken = sum(max(map(len, cells)) for cells in zip(columns, *heads, strict=False)) + len(columns)
    width = max(_LEAST_SIGNS, min(_MOST_SIGNS, (console().width - taken) // 2))

    def line(timeline: Timeline, series: str) -> str:
        return sparkline(_means(timeline, series, first_s, width_s, n_bins), width)

    rows = [
        [*head, line(timeline, "util"), line(timeline, "mem_used")]
        for head, (_, timeline) in zip(heads, known, strict=True)
    ]
    click.echo()
    print_table(columns, rows, whole=columns, spare=("node",))
    sign_s = width_s * values_per_sign(n_bins, width)
    click.echo(
        f"from {moment(first_s, zone)}, {span(sign_s)} per block; {NO_SIGN} marks time that was not measured"
    )


def _means(timeline: Timeline, series: str, first_s: int, width_s: int, n_bins: int) -> list[float | None]:
    """Return a series in the bins that are common to all devices."""
    bins: list[list[float]] = [[] for _ in range(n_bins)]
    for index, value in enumerate(timeline.fractions(series)):
        if value is not None:
            bins[(timeline.start_s + index * timeline.width_s - first_s) // width_s].append(value)
    return [sum(values) / len(values) if values else None for values in bins]


def print_hosts(uses: Sequence[HostUse], n_cpus: float | None) -> None:
    """Print host use per node; leave out columns without measurements.

    `n_cpus` is the number of CPUs of the job on each node; None if unknown.
    """

    def busy(use: HostUse) -> str:
        of = "" if n_cpus is None else f" of {number(n_cpus)}"
        return GAP if use.cpus_busy is None else f"{number(use.cpus_busy, 1)}{of}"

    columns: dict[str, Callable[[HostUse], str]] = {
        "CPU time": lambda use: span(use.cpu_s),
        "CPUs busy": busy,
        "memory max": lambda use: memory(use.rss_max_mib),
        "read": lambda use: volume(use.read_bytes),
        "written": lambda use: volume(use.write_bytes),
        "network in/out": lambda use: _in_out(use.net_rx_bytes, use.net_tx_bytes),
        "InfiniBand in/out": lambda use: _in_out(use.ib_rx_bytes, use.ib_tx_bytes),
    }
    cells = {name: [cell(use) for use in uses] for name, cell in columns.items()}
    _print_measured([(use.node,) for use in uses], cells, ("node",), _HOST_SPARE)


def print_events(events: Sequence[Event], names: DeviceNames, zone: ZoneInfo) -> None:
    """Print events, the oldest first."""
    for event in events[:_MAX_EVENTS]:
        device = "" if event.device is None else f" {names.phrase(event.device)}"
        click.echo(f"{moment(event.at_s, zone)}  {event.node}{device}  {text(event_text(event))}")
    if len(events) > _MAX_EVENTS:
        click.echo(f"and {len(events) - _MAX_EVENTS} more; --json prints all events")


def _print_measured(
    heads: Sequence[Sequence[str]],
    columns: Mapping[str, Sequence[str]],
    head_names: Sequence[str],
    spare: Sequence[str],
    left: Sequence[str] = (),
) -> None:
    measured = {name: cells for name, cells in columns.items() if any(cell != GAP for cell in cells)}
    if not measured:
        return
    rows = [[*head, *(cells[index] for cells in measured.values())] for index, head in enumerate(heads)]
    right = [name for name in measured if name not in left]
    click.echo()
    print_table((*head_names, *measured), rows, right=right, whole=head_names, spare=spare)


def _in_out(received: float | None, sent: float | None) -> str:
    return GAP if received is None and sent is None else f"{volume(received)} / {volume(sent)}"


def _ecc(use: DeviceUse) -> str:
    if use.ecc_corrected is None and use.ecc_uncorrected is None:
        return GAP
    lost = use.ecc_uncorrected
    return number(use.ecc_corrected) if not lost else f"{number(use.ecc_corrected)}, {number(lost)} lost"


def _throttled(use: DeviceUse) -> str:
    """Return the throttled time by reason, the longest first."""
    if use.throttle_s is None:
        return GAP
    longest = sorted(use.throttle_s.items(), key=lambda item: -item[1])
    reasons = [
        f"{span(seconds)} {_REASONS.get(reason, reason.replace('_', ' '))}"
        for reason, seconds in longest
        if seconds >= _LEAST_THROTTLED_S and reason != "gpu_idle"
    ]
    return ", ".join(reasons) or "no"
