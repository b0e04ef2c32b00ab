"""Periods of GPU-hours begin at midnight in the site's time zone and include the current day."""

from __future__ import annotations

import datetime as dt
import re
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.language.periods import CALENDAR, PERIOD_PATTERN, first_day, includes, period_start

DAYS = st.dates(dt.date(2024, 1, 1), dt.date(2032, 12, 31))
PERIODS = st.sampled_from(CALENDAR) | st.integers(2, 366).map(lambda days: f"{days}d")


@pytest.mark.parametrize(
    ("period", "first"),
    [
        ("day", "2026-11-21"),
        ("week", "2026-11-16"),
        ("month", "2026-11-01"),
        ("quarter", "2026-10-01"),
        ("year", "2026-01-01"),
        ("2d", "2026-11-20"),
        ("30d", "2026-10-23"),
    ],
)
def test_a_period_begins_on_a_day(period: str, first: str) -> None:
    assert str(first_day(period, dt.date(2026, 11, 21))) == first


def test_a_day_begins_at_the_sites_midnight() -> None:
    noon_s = int(dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC).timestamp())
    assert period_start("day", noon_s, ZoneInfo("UTC")) == noon_s - 12 * 3600
    assert period_start("day", noon_s, ZoneInfo("Asia/Seoul")) == noon_s - 21 * 3600  # it is 21:00 in Seoul


@given(PERIODS, PERIODS, DAYS)
def test_a_period_that_includes_another_never_begins_later(wider: str, period: str, day: dt.date) -> None:
    if includes(wider, period):
        assert first_day(wider, day) <= first_day(period, day) <= day


@pytest.mark.parametrize(
    ("wider", "period"),
    [
        ("week", "day"),
        ("30d", "day"),
        ("31d", "month"),
        ("year", "quarter"),
        ("quarter", "month"),
        ("7d", "week"),
    ],
)
def test_longer_periods_include_shorter_ones(wider: str, period: str) -> None:
    assert includes(wider, period)
    assert not includes(period, wider)


@pytest.mark.parametrize("text", ["1d", "0d", "367d", "30", "30D", "years", "d", "007d"])
def test_other_texts_are_no_period(text: str) -> None:
    assert not re.fullmatch(PERIOD_PATTERN, text)
