"""Live values and windows arrive as they were sent; 0 is a measurement, None a gap."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import Live, LiveDevice, Window
from slurm_gpu.wire.window import pack
from tests.wire.strategies import JOB_NUMBER, JSON, NAME, SEGMENT, lives

_FLOAT32 = st.floats(0, 2.0**100, width=32)


@given(lives())
def test_live_values_arrive_as_they_were_sent(live: Live) -> None:
    assert Live.from_wire(json.loads(json.dumps(live.to_wire(), allow_nan=False))) == live


def test_zero_is_live_and_a_gap_is_left_out() -> None:
    live = Live.from_wire({"at_s": 5, "devices": {"GPU-1": {"util_pct": 0, "power_w": None}}, "host": None})
    assert live == Live(at_s=5.0, devices={"GPU-1": LiveDevice(util_pct=0.0)})
    assert live.to_wire() == {"at_s": 5.0, "devices": {"GPU-1": {"util_pct": 0.0, "jobs": []}}, "host": {}}


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        (5, "live must be an object, not int"),
        ({}, "at_s is missing"),
        ({"at_s": 5, "devices": []}, "devices: must be an object with at most 512 entries"),
        ({"at_s": 5, "devices": {"GPU-1": 7}}, "devices.GPU-1 must be an object"),
        ({"at_s": 5, "devices": {"a b": {}}}, "devices: 'a b' must be a name"),
        ({"at_s": 5, "devices": {"GPU-1": {"util_pct": 130}}}, "util_pct: 130 must be from 0 to 100"),
        ({"at_s": 5, "devices": {"GPU-1": {"jobs": [-1]}}}, "jobs: -1 must be a whole number"),
        ({"at_s": 5, "devices": {"GPU-1": {"throttle": "hot"}}}, "throttle: must be a list"),
        ({"at_s": 5, "host": {"cpu_pct": "x"}}, "host.cpu_pct: 'x' must be a number"),
    ],
)
def test_malformed_live_values_are_refused_by_name(wire: Any, complaint: str) -> None:
    with pytest.raises(RecordError, match=complaint):
        Live.from_wire(wire)


@given(
    st.integers(0, 50).flatmap(
        lambda n: st.dictionaries(NAME, st.lists(st.none() | _FLOAT32, min_size=n, max_size=n), max_size=4)
    ),
    SEGMENT,
    JOB_NUMBER,
)
def test_a_window_arrives_as_it_was_sent(
    series: dict[str, list[float | None]], segment: str, job_id: int
) -> None:
    packed = {name: pack(values) for name, values in series.items()}
    sent = Window(job_id=job_id, segment=segment, device="GPU-1", start_s=5.5, width_s=1.0, series=packed)
    arrived = Window.from_wire(json.loads(json.dumps(sent.to_wire(), allow_nan=False)))
    assert arrived == sent
    assert {name: arrived.values(name) for name in series} == series
    assert arrived.values("never measured") == []


_WINDOW = {
    "job_id": 1,
    "segment": "0" * 16,
    "device": "GPU-1",
    "start_s": 5.0,
    "width_s": 1.0,
    "series": {"util_pct": ""},
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"segment": None}, "segment is missing"),
        ({"width_s": 0}, "width_s: 0 must be from 0.001 to 3600"),
        ({"series": 5}, "series: must be an object"),
        ({"series": {"a": "AAA="}}, "series.a: 'AAA=' is not base64 of 4-byte numbers"),
        ({"series": {"a": "é"}}, "series.a: 'é' is not base64"),
        ({"series": {"a": 7}}, "series.a: 7 is not base64"),
        ({"series": {"a": "AAAAAA==", "b": ""}}, r"series: must be equally long, not {.a.: 1, .b.: 0}"),
        ({"series": {"a": "AAAA" * 8192}}, "series.a: 6144 values are more than 4096"),
        ({"series": {str(n): "" for n in range(33)}}, "series: must be .* at most 32"),
    ],
)
def test_a_malformed_window_is_refused_by_the_name_of_its_field(
    change: dict[str, Any], complaint: str
) -> None:
    assert Window.from_wire(_WINDOW).values("util_pct") == []
    with pytest.raises(RecordError, match=complaint):
        Window.from_wire({**_WINDOW, **change})


@given(JSON)
def test_invalid_live_values_and_windows_are_rejected(wire: Any) -> None:
    for kind in (Live, Window):
        with pytest.raises(RecordError):
            kind.from_wire(wire)


def test_a_series_is_float32_in_little_endian() -> None:
    assert pack([1.5, 0.0]) == struct.pack("<ff", 1.5, 0.0)
