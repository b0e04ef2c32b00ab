"""The exact integral of piecewise linear loads agrees with a sum over tiny steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simgpu.load import Part, Point, integrate

SPAN = 1000  # "ns": small, so that brute force visits every one
STEPS = 8  # per ns

points = st.lists(
    st.tuples(st.integers(0, SPAN), st.floats(0, 100), st.floats(0, 40_000)), min_size=2, max_size=8
).map(lambda rows: [Point(*row) for row in sorted(rows, key=lambda row: row[0])])
part = st.builds(Part, points, st.none() | st.integers(0, SPAN))


def value_at(item: Part, time: float) -> tuple[float, float]:
    if not item.start_ns <= time < item.end_ns:
        return 0.0, 0.0
    for left, right in zip(item.points, item.points[1:], strict=False):
        if left.time_ns <= time < right.time_ns:
            x = (time - left.time_ns) / (right.time_ns - left.time_ns)
            return (
                left.util_pct + x * (right.util_pct - left.util_pct),
                left.memory_mib + x * (right.memory_mib - left.memory_mib),
            )
    raise AssertionError


def brute_force(parts: list[Part], start: int, end: int):
    busy, shares, memory = 0.0, [0.0] * len(parts), [0.0] * len(parts)
    for step in range(start * STEPS, end * STEPS):
        values = [value_at(item, (step + 0.5) / STEPS) for item in parts]
        total = sum(util for util, _ in values)
        busy += min(100.0, total) / STEPS
        for index, (util, used_mib) in enumerate(values):
            shares[index] += util * min(1.0, 100.0 / total if total else 1.0) / STEPS
            memory[index] += used_mib / STEPS
    return busy, shares, memory


@settings(max_examples=40)
@given(st.lists(part, min_size=1, max_size=4), st.integers(0, SPAN), st.integers(1, SPAN // 4))
def test_integrals_agree_with_brute_force(parts, start, width):
    whole = integrate(parts, start, start + width)
    busy, shares, memory = brute_force(parts, start, start + width)
    assert whole.busy == pytest.approx(busy, abs=0.002 * width + 0.1)
    assert whole.shares == pytest.approx(shares, abs=0.002 * width + 0.1)
    assert whole.memory == pytest.approx(memory, rel=0.01, abs=50 * width)
    assert sum(whole.shares) == pytest.approx(whole.busy)


@given(st.lists(part, min_size=1, max_size=4), st.lists(st.integers(0, SPAN), min_size=3, max_size=3))
def test_an_interval_is_the_sum_of_its_parts(parts, cuts):
    first, middle, last = sorted(cuts)
    left, right = integrate(parts, first, middle), integrate(parts, middle, last)
    assert integrate(parts, first, last).busy == pytest.approx(left.busy + right.busy, abs=1e-3)


def test_a_full_device_is_shared_in_proportion():
    ends = [Point(0, 90.0, 0), Point(100, 90.0, 0)], [Point(50, 60.0, 0), Point(100, 60.0, 0)]
    whole = integrate([Part(item) for item in ends], 0, 100)
    assert whole.busy == pytest.approx(90 * 50 + 100 * 50)
    assert whole.shares == pytest.approx([90 * 50 + 60 * 50, 40 * 50])
