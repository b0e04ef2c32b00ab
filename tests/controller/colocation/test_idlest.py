"""Test the minimum utilisation of a GPU by an undisturbed job over a period."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.colocation.idlest import expected, idlest


def test_a_job_that_is_even_is_as_busy_in_any_while() -> None:
    assert idlest([0.5] * 100, 1) == pytest.approx((0.5, 0.5, 0.5))
    assert idlest([0.5] * 19, 1) == ()
    assert idlest([], 1) == ()


def test_a_job_that_loads_has_done_nothing_for_as_long() -> None:
    assert idlest([0.0] * 60 + [0.8] * 300, 1) == pytest.approx((0, 0, 0.2, 0.5, 0.65))


def test_unmeasured_time_may_have_been_idle() -> None:
    assert idlest([None] * 20 + [0.5] * 20, 1) == pytest.approx((0, 0.25))


def test_in_a_bin_all_that_lacks_may_have_been_at_once() -> None:
    loads = [0.95 * 196 / 256] + [0.95] * 9  # the job loads data for a minute of the first bin
    assert idlest(loads, 256) == pytest.approx((0, 0, 0.95 * 20 / 80, 0.95 * 100 / 160, 0.95 * 260 / 320))
    assert idlest([0.9] * 10, 256) == pytest.approx((0.9,) * 5)


def test_nothing_is_known_of_an_idle_job() -> None:
    assert idlest([0.0] * 100, 1) == idlest([None] * 100, 1) == ()


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=64),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.integers(0, 2000),
    st.integers(0, 5),
)
def test_no_while_of_the_run_has_less(util: list[float], width_s: int, begin_s: int, k: int) -> None:
    found, seconds = idlest(util, width_s), 20 * 2**k
    course = [one for one in util for _ in range(width_s)]
    there = course[begin_s : begin_s + seconds]
    if k < len(found) and len(there) == seconds:
        assert found[k] <= sum(there) / seconds + 1e-9


def test_the_expected_minimum_uses_the_longest_duration_that_fits() -> None:
    least = (0.0, 0.1, 0.3)
    assert [expected(least, 0.5, seconds) for seconds in (10, 20, 39, 40, 100, 200)] == [
        0.5,
        0.0,
        0.0,
        0.1,
        0.3,
        0.5,
    ]
    assert expected((), 0.5, 100) == 0.5
