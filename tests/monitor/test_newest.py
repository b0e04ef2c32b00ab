"""Timelines of running jobs continue with the windows that nodes send on request."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_gpu.errors import NotFoundError
from slurm_gpu.monitor.job.newest import extended, with_newest
from slurm_gpu.wire import DeviceFacts, Timeline
from slurm_gpu.wire.answers.runs import DeviceTimeline, NodeWindow, RunTimeline
from slurm_gpu.wire.timeline import FULL, GAP
from tests.monitor.slow_training import Drawn

NAN = math.nan


def window(start_s: float, width_s: float = 1.0, **series: Sequence[float]) -> NodeWindow:
    packed = {name: struct.pack(f"<{len(values)}f", *values) for name, values in series.items()}
    given = {"job_id": 17, "segment": "s", "device": "GPU-1", "node": "n1", "at_s": 0}
    return NodeWindow(**given, start_s=start_s, width_s=width_s, series=packed)  # type: ignore[arg-type]


def timeline(width_s: int = 4, n_bins: int = 3, level: int = 200, **more: bytes) -> Timeline:
    return Timeline(width_s=width_s, start_s=1000, series={"util": bytes([level]) * n_bins, **more})


def fractions(line: Timeline, name: str = "util") -> list[float | None]:
    return [None if value is None else round(value, 2) for value in line.fractions(name)]


def test_bins_after_the_end_are_means_of_samples_and_stored_bins_stay() -> None:
    line = extended(timeline(), window(1008, util_pct=[0] * 4 + [10, 20, 30, 40] + [100] * 4), None)
    assert (line.width_s, line.start_s) == (4, 1000)
    assert fractions(line) == [0.8, 0.8, 0.8, 0.25, 1.0]


def test_time_between_the_timeline_and_the_window_is_a_gap() -> None:
    line = extended(timeline(), window(1020, util_pct=[50] * 4), None)
    assert fractions(line)[3:] == [None, None, 0.5]


def test_a_bin_needs_half_of_its_samples() -> None:
    line = extended(timeline(), window(1012, util_pct=[50, NAN, NAN, NAN, 60, 60, NAN, NAN, 70]), None)
    assert fractions(line)[3:] == [None, 0.6], "the last bin has only just begun"


def test_an_old_window_adds_nothing() -> None:
    assert extended(timeline(), window(900, util_pct=[50] * 60), None) == timeline()


def test_a_job_without_records_has_a_timeline_of_its_window() -> None:
    line = extended(None, window(1001, util_pct=[50] * 8, mem_used_frac=[0.25] * 8), None)
    assert line.start_s <= 1001
    assert 0.5 in fractions(line)
    assert 0.25 in fractions(line, "mem_used")


def test_power_clock_and_links_are_shares_of_the_limits_of_the_gpu() -> None:
    facts = DeviceFacts(
        node="n1", at_s=0, uuid="GPU-1", power_limit_w=400, sm_clock_max_mhz=1400, pcie_bytes_per_s=32e9
    )
    stored = timeline(**{name: bytes(3) for name in ("power", "sm_clock", "pcie", "nvlink")})
    samples = {
        "power_w": [100.0] * 4,
        "sm_clock_mhz": [700.0] * 4,
        "pcie_rx_bytes_per_s": [16e9] * 4,
        "pcie_tx_bytes_per_s": [NAN] * 4,
    }
    line = extended(stored, window(1012, **samples), facts)
    assert [fractions(line, name)[-1] for name in ("power", "sm_clock", "pcie", "nvlink", "util")] == [
        *(0.25, 0.5, 0.5),
        *(None, None),
    ]


@given(
    st.integers(0, 9).map(lambda power: 2**power),
    st.floats(-2000, 2000),
    st.floats(0.2, 40),
    st.lists(st.one_of(st.floats(0, 100), st.just(NAN)), max_size=300),
)
def test_any_window_only_appends(width_s: int, offset_s: float, sample_s: float, values: list[float]) -> None:
    stored = timeline(width_s, mem_used=bytes([GAP, 3, 5]))
    line = extended(stored, window(1000 + offset_s, sample_s, util_pct=values), None)
    assert all(line.series[name].startswith(levels) for name, levels in stored.series.items())
    assert len({len(levels) for levels in line.series.values()}) == 1
    known = [100 * value for value in line.fractions("util")[3:] if value is not None]
    measured = [value for value in values if not math.isnan(value)]
    assert all(min(measured) - 50 / FULL <= value <= max(measured) + 50 / FULL for value in known)
    assert line.end_s <= max(stored.end_s, 1000 + offset_s + len(values) * sample_s + width_s)


class Site(Drawn):
    """A running job on slurm-gpudbd, whose windows the test chooses."""

    def __init__(self) -> None:
        super().__init__()
        (self.course,) = [item for item in self.courses if item.submit_s == self.run.submit_s]
        self.first = (self.course.devices or ())[0]
        assert self.first.timeline is not None
        self.sent = window(self.first.timeline.end_s, util_pct=[50] * 64)
        self.sent = replace(self.sent, job_id=self.run.job_id, node=self.first.node, device=self.first.device)
        self.source.windows = lambda job: [self.sent]  # type: ignore[method-assign]

    def answer(self, item: RunTimeline) -> Sequence[DeviceTimeline] | None:
        (found,) = with_newest(self.source, self.job, [self.run], [item])
        return found.devices


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


def test_only_gpus_that_sent_a_window_continue(site: Site) -> None:
    devices = site.answer(site.course)
    assert devices is not None
    assert site.course.devices is not None
    assert fractions(devices[0].timeline, "util")[-4:] == [0.5] * 4  # type: ignore[arg-type]
    assert list(devices[1:]) == list(site.course.devices[1:])


def test_hidden_and_ended_runs_request_no_windows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: str) -> Sequence[NodeWindow]:
        raise AssertionError(f"windows of {job} were requested")

    monkeypatch.setattr(site.source, "windows", refuse)
    assert site.answer(replace(site.course, devices=None)) is None
    monkeypatch.setattr(site, "run", structs.replace(site.run, end_s=site.run.start_s))
    assert site.answer(site.course) == site.course.devices


def test_jobs_with_very_many_gpus_request_no_windows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.monitor.job.newest.MOST_DEVICES", len(site.course.devices or ()) - 1)
    assert site.answer(site.course) == site.course.devices


def test_without_windows_the_stored_timelines_remain(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: str) -> Sequence[NodeWindow]:
        raise NotFoundError("no window is stored")

    monkeypatch.setattr(site.source, "windows", fail)
    assert site.answer(site.course) == site.course.devices
