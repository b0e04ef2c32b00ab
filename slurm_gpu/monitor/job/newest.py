"""Append the last ten minutes at full resolution to the timelines of running jobs.

Nodes send timelines every few minutes with their records, and windows within about a minute of a request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import DeviceFacts, Timeline, Window
from slurm_gpu.wire.answers.runs import DeviceTimeline, NodeWindow, Run, RunTimeline
from slurm_gpu.wire.timeline import GAP, level
from slurm_gpu.wire.window import FRACTIONS

# The width of bins if a device has no timeline yet.
_FIRST_WIDTH_S = 4
# Minimum measured share of a bin.
_LEAST_KNOWN = 0.5
# Windows of more GPUs take too long to read for a page that is reloaded every 30 s.
MOST_DEVICES = 64


def with_newest(
    source: DatabaseClient, job: str, runs: Sequence[Run], timelines: Sequence[RunTimeline]
) -> Sequence[RunTimeline]:
    """Append windows to the visible timelines of running runs; request the windows if they are missing.

    If the runs have more than MOST_DEVICES GPUs in total, return the stored timelines.
    """
    running = {(run.job_id, run.submit_s): run for run in runs if run.has_started and run.end_s is None}
    n_devices = [
        max(len(item.devices), len(run.devices or ()))
        for item in timelines
        if item.devices is not None and (run := running.get((item.job_id, item.submit_s))) is not None
    ]
    if not n_devices or sum(n_devices) > MOST_DEVICES:
        return timelines
    try:
        windows = sorted(source.windows(job), key=lambda window: window.start_s)
    except DatabaseError:
        return timelines  # the stored timelines are still valid
    extended = []
    for item in timelines:
        run = running.get((item.job_id, item.submit_s))
        if run is None or item.devices is None:
            extended.append(item)
        else:
            ours = [window for window in windows if window.job_id == item.job_id]
            extended.append(replace(item, devices=_with_windows(item.devices, ours, run.device_facts or {})))
    return extended


def _with_windows(
    devices: Sequence[DeviceTimeline], windows: Iterable[NodeWindow], facts: Mapping[str, DeviceFacts]
) -> Sequence[DeviceTimeline]:
    found = {(item.node, item.device): item.timeline for item in devices}
    for window in windows:
        key = window.node, window.device
        found[key] = extended(found.get(key), window, facts.get(window.device))
    return [DeviceTimeline(node=node, device=device, timeline=line) for (node, device), line in found.items()]


def extended(timeline: Timeline | None, window: Window, facts: DeviceFacts | None) -> Timeline:
    """Return the timeline with bins for the part of the window after its end.

    Values are means of the samples in each bin. A bin of which less than half was measured is a gap.
    """
    series = _fractions(window, facts)
    if timeline is None:
        start_s = math.floor(window.start_s / _FIRST_WIDTH_S) * _FIRST_WIDTH_S
        timeline = Timeline(width_s=_FIRST_WIDTH_S, start_s=start_s, series=dict.fromkeys(series, b""))
    width_s, end_s = timeline.width_s, timeline.end_s
    n_samples = max((len(values) for values in series.values()), default=0)
    n_more = max(0, math.ceil((window.start_s + n_samples * window.width_s - end_s) / width_s))
    added = {
        name: _binned(series.get(name, ()), window.start_s - end_s, window.width_s, width_s, n_more)
        for name in timeline.series
    }
    # The last bin may have just begun.
    n_more = max((len(levels.rstrip(bytes([GAP]))) for levels in added.values()), default=0)
    return replace(
        timeline, series={name: levels + added[name][:n_more] for name, levels in timeline.series.items()}
    )


def _binned(
    values: Sequence[float | None], start_s: float, sample_s: float, width_s: int, n_bins: int
) -> bytes:
    """Return the levels of `n_bins` bins from 0; the first value begins at `start_s`."""
    sums, known_s = [0.0] * n_bins, [0.0] * n_bins
    for place in range(max(0, math.floor(-start_s / sample_s)), len(values)):
        value = values[place]
        if value is None:
            continue
        first_s = start_s + place * sample_s
        last_s = first_s + sample_s
        for at in range(max(0, math.floor(first_s / width_s)), min(n_bins, math.ceil(last_s / width_s))):
            overlap_s = min(last_s, (at + 1) * width_s) - max(first_s, at * width_s)
            sums[at] += value * overlap_s
            known_s[at] += overlap_s
    return bytes(
        level(total / seconds) if seconds >= _LEAST_KNOWN * width_s else GAP
        for total, seconds in zip(sums, known_s, strict=True)
    )


def _fractions(window: Window, facts: DeviceFacts | None) -> dict[str, list[float | None]]:
    """Return the series of a window as fractions of 1, by their names in timelines."""
    found = {name: _scaled(window.values(own), scale) for name, (own, scale) in FRACTIONS.items()}
    if facts is not None:
        if facts.power_limit_w:
            found["power"] = _scaled(window.values("power_w"), 1 / facts.power_limit_w)
        if facts.sm_clock_max_mhz:
            found["sm_clock"] = _scaled(window.values("sm_clock_mhz"), 1 / facts.sm_clock_max_mhz)
        for link, capacity in (("pcie", facts.pcie_bytes_per_s), ("nvlink", facts.nvlink_bytes_per_s)):
            if capacity:
                ways = [window.values(f"{link}_{way}_bytes_per_s") for way in ("rx", "tx")]
                rates = zip_longest(*(rates for rates in ways if rates))
                found[link] = _scaled((_mean(pair) for pair in rates), 1 / capacity)
    return {name: values for name, values in found.items() if values}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _scaled(values: Iterable[float | None], factor: float) -> list[float | None]:
    return [None if value is None else value * factor for value in values]
