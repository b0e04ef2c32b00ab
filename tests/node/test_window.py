"""The window has each of the last 600 seconds as it was measured, and nothing of the time before."""

import base64
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.window import SECONDS, Window

WALL = 1_795_000_000.0


def wire(window: Window) -> dict[str, Any]:
    value = window.to_wire(7, "00000000000000aa", "GPU-0")
    assert value is not None
    return value


def series(window: Window, name: str) -> list[float | None]:
    packed = base64.b64decode(wire(window)["series"][name])
    values = struct.unpack(f"<{len(packed) // 4}f", packed)
    return [None if math.isnan(value) else value for value in values]


def test_each_second_is_the_mean_of_what_was_measured_of_it() -> None:
    window = Window(100.0, WALL + 0.5)
    window.utilization(100.0, 100.25, {"util_pct": 100.0})
    window.utilization(100.25, 101.0, {"util_pct": 0.0})
    window.utilization(101.0, 103.0, {"util_pct": 60.0})
    assert wire(window)["start_s"] == int(WALL)
    assert wire(window)["width_s"] == 1
    assert series(window, "util_pct") == [50.0, 30.0, 60.0, 60.0]


def test_what_was_not_measured_is_a_gap_and_zero_is_not() -> None:
    window = Window(0.0, WALL)
    window.details(0.0, 1.0, {"power_w": 0.0, "temp_c": None})
    window.details(3.0, 4.0, {"power_w": 250.0, "temp_c": None})
    assert series(window, "power_w") == [0.0, None, None, 250.0]
    assert list(wire(window)["series"]) == ["power_w"]


def test_all_fields_span_the_same_seconds() -> None:
    window = Window(0.0, WALL)
    window.memory(0.0, 2.0, {"mem_used_mib": 1.0})
    window.utilization(0.5, 5.0, {"util_pct": 2.0})
    assert series(window, "mem_used_mib") == [1.0, 1.0, None, None, None]
    assert series(window, "util_pct") == [2.0] * 5


def test_before_anything_was_measured_there_is_no_window() -> None:
    assert Window(0.0, WALL).to_wire(7, "00000000000000aa", "GPU-0") is None


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0.05, 400), st.integers(0, 100)), max_size=30))
def test_it_has_the_last_ten_minutes(steps: list[tuple[float, float, int]]) -> None:
    window = Window(0.0, WALL)
    truth: dict[int, list[tuple[float, float]]] = {}
    at_s = 0.0
    for pause, seconds, value in steps:
        at_s += pause
        window.details(at_s, at_s + seconds, {"power_w": float(value)})
        for second in range(int(at_s), math.ceil(at_s + seconds)):
            part = min(at_s + seconds, second + 1) - max(at_s, second)
            truth.setdefault(second, []).append((part, float(value)))
        at_s += seconds
    if not truth:
        return
    last = max(truth)
    values = series(window, "power_w")
    first = max(0, last - SECONDS + 1)
    assert wire(window)["start_s"] == WALL + first
    assert len(values) == last - first + 1
    for second, value in zip(range(first, last + 1), values, strict=True):
        parts = truth.get(second)
        if parts is None or value is None:
            assert parts is None
            assert value is None
            continue
        expected = sum(part * v for part, v in parts) / sum(part for part, _ in parts)
        assert value == pytest.approx(expected, abs=0.02)
