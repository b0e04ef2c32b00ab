"""The window contains each of the last 600 seconds as measured, and no earlier ones."""

import base64
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.measure.window import SECONDS, WindowRecorder

WALL = 1_795_000_000.0


def wire(window: WindowRecorder) -> dict[str, Any]:
    value = window.to_wire(7, "00000000000000aa", "GPU-0")
    assert value is not None
    return value


def series(window: WindowRecorder, name: str) -> list[float | None]:
    packed = base64.b64decode(wire(window)["series"][name])
    values = struct.unpack(f"<{len(packed) // 4}f", packed)
    return [None if math.isnan(value) else value for value in values]


def test_utilization_is_the_mean_of_each_second() -> None:
    window = WindowRecorder(100.0, WALL + 0.5)
    window.utilization(100.0, 100.25, 100.0, 100.0)
    window.utilization(100.25, 101.0, 0.0, 50.0)
    window.utilization(101.0, 103.6, 60.0, 80.0)
    assert wire(window)["start_s"] == int(WALL)
    assert wire(window)["width_s"] == 1
    # The fifth second is not over.
    assert series(window, "util_pct") == [50.0, 30.0, 60.0, 60.0]
    assert series(window, "device_util_pct") == [75.0, 65.0, 80.0, 80.0]


def test_an_unknown_share_of_a_job_is_a_gap() -> None:
    window = WindowRecorder(0.0, WALL)
    window.utilization(0.0, 1.0, 0.0, 50.0)
    window.utilization(1.0, 3.5, None, 50.0)
    assert series(window, "util_pct") == [0.0, None, None]
    assert series(window, "device_util_pct") == [50.0, 50.0, 50.0]


def test_an_unmeasured_second_is_a_gap_and_zero_is_not() -> None:
    window = WindowRecorder(0.0, WALL)
    window.details(0.0, 1.0, {"power_w": 0.0, "temp_c": None})
    window.details(3.0, 4.0, {"power_w": 250.0, "temp_c": None})
    window.details(4.0, 5.0, {"power_w": None, "throttle.sw_power_cap": 1.0})
    window.details(5.0, 6.0, {"power_w": 50.0})
    assert series(window, "power_w") == [0.0, None, None, 250.0, None, 50.0]
    assert series(window, "throttle.sw_power_cap") == [None, None, None, None, 1.0, None]
    assert sorted(wire(window)["series"]) == ["power_w", "throttle.sw_power_cap"]


def test_all_fields_span_the_same_seconds() -> None:
    window = WindowRecorder(0.0, WALL)
    window.memory(0.0, 2.0, {"mem_used_mib": 1.0})
    window.utilization(0.5, 5.0, 2.0, 2.0)
    assert series(window, "mem_used_mib") == [1.0, 1.0, None, None, None]
    assert series(window, "util_pct") == [2.0] * 5


def test_without_samples_there_is_no_window() -> None:
    assert WindowRecorder(0.0, WALL).to_wire(7, "00000000000000aa", "GPU-0") is None


@settings(max_examples=50, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0.05, 400), st.integers(0, 100)), max_size=30))
def test_a_window_covers_the_last_ten_minutes(steps: list[tuple[float, float, int]]) -> None:
    window = WindowRecorder(0.0, WALL)
    middles: dict[int, float] = {}
    parts: dict[int, list[tuple[float, float]]] = {}
    at_s = 0.0
    for pause, seconds, value in steps:
        begin_s = at_s + pause
        at_s = begin_s + seconds
        window.details(begin_s, at_s, {"power_w": float(value)})
        window.utilization(begin_s, at_s, float(value), 0.0)
        for second in range(int(begin_s), math.ceil(at_s)):
            part = min(at_s, second + 1) - max(begin_s, second)
            parts.setdefault(second, []).append((part, float(value)))
            if begin_s <= second + 0.5 < at_s:
                middles[second] = float(value)
    parts.pop(int(at_s), None)  # not over
    if not middles and not parts:
        return
    last = max((*middles, *parts))
    first = max(0, last - SECONDS + 1)
    means = {s: sum(p * v for p, v in of) / sum(p for p, _ in of) for s, of in parts.items()}
    for name, truth in (("power_w", middles), ("util_pct", means)):
        if not any(second >= first for second in truth):
            assert name not in wire(window)["series"]
            continue
        values = series(window, name)
        assert wire(window)["start_s"] == WALL + first
        assert len(values) == last - first + 1
        for second, found in zip(range(first, last + 1), values, strict=True):
            expected = truth.get(second)
            assert (found is None) == (expected is None)
            assert found is None or found == pytest.approx(expected, abs=1e-4)
