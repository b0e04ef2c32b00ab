"""Test the growth of a counter between two readings: wraps count, resets are gaps, 0 is a measurement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import DeviceCounter
from slurm_gpu.node.measure.counters import CounterSum, growth
from slurm_gpu.wire import Total


@given(st.sampled_from([32, 64]), st.data())
def test_a_wrap_is_counted(bits: int, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, 2**bits - 1))
    grown = data.draw(st.integers(0, 2 ** (bits - 1) - 1))
    after = (before + grown) % 2**bits
    assert growth(DeviceCounter(before, bits), DeviceCounter(after, bits), 1.0, None) == grown


@given(st.integers(0, 2**40), st.integers(0, 2**20))
def test_a_reset_of_a_long_counter_is_a_gap(before: int, after: int) -> None:
    if after < before:
        assert growth(DeviceCounter(before), DeviceCounter(after), 1.0, None) is None


def test_a_reset_of_a_short_counter_is_a_gap_where_no_link_is_as_fast() -> None:
    # 1.3e9 bytes up to the wrap at 2**32: possible within a second at 1 GB/s, but not at 100 MB/s.
    before, after = DeviceCounter(3_000_000_000, 32), DeviceCounter(5_000_000, 32)
    assert growth(before, after, 1.0, 1e9) == 2**32 - 3_000_000_000 + 5_000_000
    assert growth(before, after, 1.0, 1e8) is None


def test_growth_faster_than_the_device_can_do_is_a_gap() -> None:
    assert growth(DeviceCounter(0), DeviceCounter(300_000), 1.0, 400_000) == 300_000
    assert growth(DeviceCounter(0), DeviceCounter(300_000_000), 1.0, 400_000) is None


def test_a_counter_that_may_have_wrapped_twice_is_a_gap() -> None:
    assert growth(DeviceCounter(10, 32), DeviceCounter(20, 32), 1.0, 64e9) is None
    assert growth(DeviceCounter(10, 64), DeviceCounter(20, 64), 1.0, 64e9) == 10


def test_a_counter_that_changed_its_width_is_a_gap() -> None:
    assert growth(DeviceCounter(10, 32), DeviceCounter(20, 64), 1.0, None) is None


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 2**20)), min_size=1, max_size=20))
def test_the_total_does_not_depend_on_the_number_of_readings(steps: list[tuple[float, int]]) -> None:
    counter = CounterSum()
    counter.see(DeviceCounter(2**32 - 2**19, 32), 1.0, 0.0)
    value = 2**32 - 2**19
    for seconds, grown in steps:
        value = (value + grown) % 2**32
        counter.see(DeviceCounter(value, 32), seconds, seconds)
    total = counter.total()
    assert total is not None
    assert total.total == sum(grown for _, grown in steps)
    assert total.seconds == pytest.approx(sum(seconds for seconds, _ in steps), abs=0.001)


def test_nothing_counted_is_zero_and_nothing_read_is_a_gap() -> None:
    counter = CounterSum()
    assert counter.total() is None
    counter.see(DeviceCounter(7), 1.0, 1.0)
    assert counter.total() is None  # the first reading covers no time
    assert counter.see(DeviceCounter(7), 1.0, 1.0) == 0.0
    assert counter.total() == Total(1.0, 0)


def test_a_failed_reading_is_a_gap_up_to_the_next() -> None:
    counter = CounterSum()
    for value in (DeviceCounter(0), DeviceCounter(5), None, DeviceCounter(100), DeviceCounter(103)):
        counter.see(value, 1.0, 1.0)
    assert counter.total() == Total(2.0, 8)


def test_only_the_allocated_part_of_the_last_interval_counts() -> None:
    counter = CounterSum()
    counter.see(DeviceCounter(0), 1.0, 1.0)
    assert counter.see(DeviceCounter(1000), 1.0, 0.25) == 1000.0
    assert counter.total() == Total(0.25, 250)


def test_counters_of_a_reloaded_driver_are_not_compared_with_earlier_ones() -> None:
    counter = CounterSum()
    counter.see(DeviceCounter(1000), 1.0, 1.0)
    counter.forget()
    counter.see(DeviceCounter(1500), 1.0, 1.0)
    assert counter.total() is None
