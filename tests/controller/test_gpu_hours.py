"""GPU-hours are summed by period in the site's time zone, and each run counts once."""

from __future__ import annotations

import math
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.queue.gpu_hours import GpuHours, GpuRun, committed_hours
from slurm_gpu.controller.queue.usage import Subject, UsageOwner
from slurm_gpu.policy.language.periods import period_start
from slurm_gpu.policy.lua.installed import GroupInForce

from .fakes import NOON_S

ALICE = UsageOwner(1001, "alice", "vision", "normal", "gpu")
GRADS = GroupInForce("grads", accounts=frozenset({"vision"}))
HOUR_S = 3600
ZONE = ZoneInfo("UTC")


def run(job_id: int, start_s: int, end_s: int | None, mgpu: int = 2000) -> GpuRun:
    return GpuRun(job_id, ALICE, mgpu, start_s, end_s)


def hours(store: GpuHours, now_s: int = NOON_S, *running: GpuRun) -> dict[str, float]:
    starts = {period: period_start(period, now_s, ZONE) for period in ("day", "week", "month")}
    return store.totals(running, [GRADS], starts, now_s).get(Subject("alice", "grads"), {})


def test_a_run_counts_in_each_period_by_its_overlap() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S - 14 * HOUR_S, NOON_S - 10 * HOUR_S))  # from 22:00 to 02:00
    assert hours(store) == {"day": 4.0, "week": 8.0, "month": 8.0}


def test_running_jobs_count_up_to_now() -> None:
    store, running = GpuHours(ZONE), run(1, NOON_S - HOUR_S, None)
    assert hours(store, NOON_S, running)["day"] == 2.0
    assert hours(store, NOON_S + HOUR_S, running)["day"] == 4.0


def test_a_run_reported_twice_counts_once_and_each_run_of_a_job_counts() -> None:
    store = GpuHours(ZONE)
    for _ in range(2):
        store.note_ended(run(1, NOON_S - 4 * HOUR_S, NOON_S - 3 * HOUR_S))
        store.note_ended(run(1, NOON_S - 2 * HOUR_S, NOON_S - HOUR_S))
    assert hours(store)["day"] == 4.0


def test_a_new_day_starts_at_zero_and_the_week_continues() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S - HOUR_S, NOON_S))
    assert hours(store)["day"] == 2.0
    tomorrow = hours(store, NOON_S + 86400)
    assert (tomorrow["day"], tomorrow["week"]) == (0.0, 2.0)
    assert hours(store, NOON_S + 30 * 86400) == {}


def test_runs_that_took_no_time_or_no_gpu_leave_no_trace() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S, NOON_S))
    store.note_ended(run(2, NOON_S - HOUR_S, NOON_S, mgpu=0))
    assert hours(store) == {}


def test_accounting_replaces_the_queue_for_a_resized_run() -> None:
    store, start_s = GpuHours(ZONE), NOON_S - 10 * HOUR_S
    store.note_gone(run(7, start_s, NOON_S, mgpu=1000))
    assert hours(store)["day"] == 10.0
    store.note_ended(run(7, start_s + 9 * HOUR_S, NOON_S + 1, mgpu=1000))
    store.note_ended(run(7, start_s, start_s + 9 * HOUR_S, mgpu=16000))
    store.note_gone(run(7, start_s, NOON_S + 2, mgpu=1000))  # a second off
    assert hours(store, NOON_S + 1)["day"] == 16 * 9 + 1 + 1 / HOUR_S


def test_a_run_resized_and_ended_between_two_polls_counts_as_it_ran() -> None:
    store = GpuHours(ZONE)
    hours(store, NOON_S, run(7, NOON_S - HOUR_S, None, mgpu=16000))
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S, mgpu=1000))
    assert hours(store)["day"] == 16.0


def test_a_run_of_the_queue_is_not_cut_short_by_the_run_before_it() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(7, NOON_S - 4 * HOUR_S, NOON_S - 2 * HOUR_S))
    assert hours(store, NOON_S, run(7, NOON_S - HOUR_S, None))["day"] == 6.0
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S))
    assert hours(store)["day"] == 6.0


def test_earlier_parts_of_a_running_run_are_kept() -> None:
    """Slurm 22.05 reports a resized run with the start of its first part."""
    store, start_s = GpuHours(ZONE), NOON_S - 10 * 86400
    store.note_ended(run(7, start_s, start_s + HOUR_S, mgpu=16000))
    store.note_ended(run(8, NOON_S - HOUR_S, NOON_S))
    running = run(7, start_s, None, mgpu=1000)
    expected = 16 + 10 * 24 - 1 + 2
    assert [hours(store, NOON_S, running)["month"] for _ in range(2)] == [expected, expected]


def test_a_run_of_long_ago_counts_in_the_year_and_is_not_kept() -> None:
    store, starts = GpuHours(ZONE), {"day": NOON_S - 12 * HOUR_S, "year": NOON_S - 300 * 86400 - 12 * HOUR_S}
    for day in (*range(31), *range(300, 30, -1)):  # the latest days first, as slurm-gpuctld reads them
        store.note_ended(run(day, NOON_S - day * 86400 - HOUR_S, NOON_S - day * 86400))
    assert store.totals([], [GRADS], starts, NOON_S)[Subject(None, "grads")] == {"day": 2.0, "year": 602.0}
    assert len(store._ended) < 10


@given(
    st.lists(st.tuples(st.integers(0, 400 * 24), st.integers(1, 100), st.integers(1, 8)), max_size=30),
    st.sampled_from(["America/New_York", "UTC", "Africa/Cairo"]),
)
def test_days_add_up_to_each_period(runs: list[tuple[int, int, int]], zone_name: str) -> None:
    zone = ZoneInfo(zone_name)
    store, starts = (
        GpuHours(zone),
        {p: period_start(p, NOON_S, zone) for p in ("day", "quarter", "30d", "year")},
    )
    expected = dict.fromkeys(starts, 0.0)
    for number, (ago_h, length_h, gpus) in enumerate(sorted(runs, key=lambda one: one[1] - one[0])):
        start_s = NOON_S - ago_h * HOUR_S
        end_s = min(start_s + length_h * HOUR_S, NOON_S)
        store.note_ended(run(number, start_s, end_s, 1000 * gpus))
        for period, first_s in starts.items():
            expected[period] += max(end_s - max(start_s, first_s), 0) / HOUR_S * gpus
    found = store.totals([], [GRADS], starts, NOON_S).get(Subject(None, "grads"), dict.fromkeys(starts, 0.0))
    assert found == pytest.approx(expected)


def test_jobs_commit_the_rest_of_their_time_limit() -> None:
    jobs = [(ALICE, 2000, 3600.0), (ALICE, 1000, -5.0), (ALICE, 1000, math.inf)]
    group = replace(GRADS, has_hard_limit=True)
    found = committed_hours(jobs, [group, GroupInForce("all")])
    assert found[Subject(None, "grads")] == {"committed": 2 + 365 * 24}
    assert Subject(None, "all") not in found
