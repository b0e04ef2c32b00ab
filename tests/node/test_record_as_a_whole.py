"""Test a record with every field: merged parts equal the whole, sums are right, the size is limited."""

import dataclasses
import gzip
import json
import math
import random
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter, DeviceMemory, Reading
from slurm_gpu.node.measure.tally import DeviceSample, DeviceTally
from slurm_gpu.wire import (
    Mean,
    Record,
    Timeline,
    Total,
    Window,
    histogram_quantile,
    merge_histograms,
    merge_means,
    merge_timelines,
    merge_totals,
)
from slurm_gpu.wire.timeline import FULL
from tests.node.samples import GAP, KEY, START, TOTAL, WALL, mean, sample, tally


def _work(source: random.Random, seconds: int) -> list[tuple[list[tuple[float, float]], DeviceSample]]:
    """Return, for each second from START, the utilisation samples (length, percent) and the last sample."""
    counters = [name for name, kind in Reading.__annotations__.items() if "DeviceCounter" in str(kind)]
    amounts = dict.fromkeys(counters, 0)
    work = []
    watts = 200.0
    for second in range(seconds + 1):
        before, watts = watts, 400 * source.random()
        # Samples of power cover only a part of the counter's growth.
        rates = {"energy_mj": 500 * (before + watts) * (0.5 + source.random())}
        rates["nvlink_rx_bytes"] = 300e9 * source.random()
        for name in amounts:
            amounts[name] += int(rates[name] if name in rates else source.random() * 32e9)
        samples = [(0.25, float(source.randrange(101))) for _ in range(4 if second else 0)]
        last = sample(
            START + second,
            processes=source.randrange(3),
            memory=DeviceMemory(source.randrange(TOTAL), TOTAL),
            power_w=watts,
            temp_c=100 * source.random(),
            sm_clock_mhz=2000 * source.random(),
            mem_util_pct=100 * source.random(),
            throttle=tuple(r for r in ("sw_power_cap", "hw_slowdown") if source.random() < 0.3),
            activity=Activity(1.0, *(source.random() for _ in Activity._fields[1:5])),
            **{name: DeviceCounter(amount) for name, amount in amounts.items()},
        )
        work.append((samples, last))
    return work


def _record(one: DeviceTally, work: list[tuple[list[tuple[float, float]], DeviceSample]]) -> Record:
    for samples, last in work:
        at_s = last.reading.at_s - sum(length for length, _ in samples)
        for length, percent in samples:
            one.utilization(at_s, at_s + length, percent, percent)
            at_s += length
        one.add_sample(last, GAP, GAP)
    return one.record(work[-1][1].reading.at_s, final=True)


def _merged(parts: list[Record]) -> dict[str, Any]:
    merges: dict[str, Any] = {
        "Mean | None": merge_means,
        "Total | None": merge_totals,
        "Histogram | None": merge_histograms,
        "Timeline | None": merge_timelines,
    }
    return {
        f.name: merges[str(f.type)](getattr(part, f.name) for part in parts)
        for f in dataclasses.fields(Record)
        if str(f.type) in merges
    }


def _alike(name: str, a: Any, b: Any) -> bool:
    if isinstance(a, Mean | Total):
        # A longer segment averages power peaks that are visible only in the energy counter.
        n_comparable = 2 if name == "power_w" else 4
        pairs = list(zip(a, b, strict=True))[:n_comparable]
        return all(math.isclose(x, y, rel_tol=1e-5, abs_tol=0.01) for x, y in pairs)
    if isinstance(a, Timeline):
        return all(
            abs(x - y) <= 1.01 / FULL  # two roundings of half a level
            for series in a.series
            for x, y in zip(a.fractions(series), b.fractions(series), strict=True)
            if x is not None and y is not None
        )
    return bool(a == b)


def test_a_record_has_every_statistic() -> None:
    record = _record(tally(), _work(random.Random(1), 25))
    statistics = {f.name for f in dataclasses.fields(Record) if f.type in ("Mean | None", "Total | None")}
    assert {name for name in statistics if getattr(record, name) is None} == set()
    # A record has each gauge and counter of a reading, two of them under another name.
    renamed = {"util_pct": "device_util_pct", "energy_mj": "energy_j"}
    kinds = (float | None, DeviceCounter | None)
    read = {name for name, kind in get_type_hints(Reading).items() if kind in kinds}
    assert {renamed.get(name, name) for name in read} <= statistics


@settings(max_examples=30, derandomize=True)
@given(st.integers(0, 2**32), st.integers(2, 25), st.data())
def test_two_merged_segments_equal_one(seed: int, seconds: int, data: st.DataObject) -> None:
    work = _work(random.Random(seed), seconds)
    cut = data.draw(st.integers(1, seconds - 1))
    # If segments meet within a timeline bin, both count equally in it; here they meet between two bins.
    wall_s = float(int(WALL))
    whole, first = _record(tally(wall_s=wall_s), work), _record(tally(wall_s=wall_s), work[: cut + 1])
    border = work[cut][1]
    # The second segment begins with the last sample of the first.
    other = tally(start_s=border.reading.at_s, wall_s=wall_s + cut)
    second = _record(other, [([], border), *work[cut + 1 :]])
    for parts in ([first, second], [second, first]):
        merged = _merged(parts)
        for name, value in merged.items():
            expected = getattr(whole, name)
            assert _alike(name, value, expected), (name, value, expected)
        for q in (0.05, 0.5, 0.95):
            quantile = histogram_quantile(merged["util_hist_ms"], q)
            assert quantile == histogram_quantile(whole.util_hist_ms or {}, q)
    for reason, seconds_in_force in (whole.throttle_s or {}).items():
        parts_s = sum((part.throttle_s or {}).get(reason, 0.0) for part in (first, second))
        assert parts_s == pytest.approx(seconds_in_force, abs=0.01)


@settings(max_examples=30, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 300))
def test_the_timeline_of_a_job_adds_up_to_its_totals(seed: int, seconds: int) -> None:
    record = _record(tally(), _work(random.Random(seed), seconds))
    assert record.timeline is not None
    timeline = record.timeline
    # The first and last bins extend past the start and end of the job.
    spans = [
        max(0.0, min(WALL + seconds, begin + timeline.width_s) - max(WALL, begin))
        for begin in range(timeline.start_s, timeline.end_s, timeline.width_s)
    ]

    def integral(name: str, skip_s: float = 0.0) -> float:
        pairs = zip(timeline.fractions(name), spans, strict=True)
        total = sum(fraction * span for fraction, span in pairs if fraction is not None)
        return total - skip_s

    slack = seconds / (2 * FULL) + 1e-3
    assert abs(integral("util") - mean(record.device_util_pct) / 100 * seconds) <= slack
    assert abs(integral("mem_used") - mean(record.mem_used_frac) * seconds) <= slack
    assert abs(integral("sm_active") - mean(record.sm_active_frac) * seconds) <= slack
    assert abs(integral("sm_clock") - mean(record.sm_clock_mhz) / 2000 * seconds) <= slack
    # The first reading of a counter does not cover the second before it.
    assert record.energy_j is None or abs(integral("power") - record.energy_j.total / 400) <= slack + 1


def test_the_quantiles_of_a_job_are_exact() -> None:
    work = _work(random.Random(5), 300)
    record = _record(tally(), work)
    values = sorted(percent for samples, _ in work for _, percent in samples)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert histogram_quantile(record.util_hist_ms or {}, q) == values[math.ceil(q * len(values)) - 1]


def test_a_window_has_every_field() -> None:
    one = tally()
    _record(one, _work(random.Random(5), 700))
    wire = one.window()
    assert wire is not None
    window = Window.from_wire(wire)
    assert (window.job_id, window.segment, window.device) == (7, KEY.segment, "GPU-0")
    assert window.start_s == int(WALL) + 100
    assert set(window.series) == {
        *("util_pct", "device_util_pct", "mem_used_mib", "mem_used_frac", "mem_util_pct"),
        *("sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac", "power_w", "temp_c"),
        *("sm_clock_mhz", "processes", "ecc_corrected_per_s", "ecc_uncorrected_per_s"),
        *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"),
        *("throttle.sw_power_cap", "throttle.hw_slowdown"),
    }
    assert all(len(window.values(name)) == 600 for name in window.series)


def test_a_record_of_noise_is_at_most_three_kilobytes() -> None:
    for seconds in (255, 500, 1000):
        record = _record(tally(), _work(random.Random(seconds), seconds))
        body = json.dumps(record.to_wire(), separators=(",", ":")).encode()
        assert len(gzip.compress(body, 6)) <= 3 * 1024
