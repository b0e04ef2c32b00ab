"""GPU-hours of the day, the week and the month of the site, each run counted once."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from slurm_gpu.controller.queue.gpu_hours import CalendarPeriod, GpuHours, GpuRun, period_starts
from slurm_gpu.controller.queue.usage import Subject, UsageOwner
from slurm_gpu.policy.lua.installed import GroupInForce

from .fakes import NOON_S

ALICE = UsageOwner(1001, "alice", "vision", "normal", "gpu")
GRADS = GroupInForce("grads", accounts=frozenset({"vision"}))
HOUR_S = 3600
ZONE = ZoneInfo("UTC")


def run(job_id: int, start_s: int, end_s: int | None, mgpu: int = 2000) -> GpuRun:
    return GpuRun(job_id, ALICE, mgpu, start_s, end_s)


def hours(store: GpuHours, now_s: int = NOON_S, *running: GpuRun) -> dict[CalendarPeriod, float]:
    return store.totals(running, [GRADS], now_s).get(Subject("alice", "grads"), {})


def test_periods_begin_at_the_sites_midnight_and_weeks_on_monday() -> None:
    starts = period_starts(NOON_S, ZONE)
    midnight = NOON_S - 12 * HOUR_S
    assert starts == {
        CalendarPeriod.DAY: midnight,
        CalendarPeriod.WEEK: midnight - 5 * 86400,
        CalendarPeriod.MONTH: midnight - 20 * 86400,
    }
    # In Seoul it is 21:00 of the same day.
    assert period_starts(NOON_S, ZoneInfo("Asia/Seoul"))[CalendarPeriod.DAY] == NOON_S - 21 * HOUR_S


def test_a_run_counts_in_each_period_by_its_overlap() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S - 14 * HOUR_S, NOON_S - 10 * HOUR_S))  # from 22:00 to 02:00
    assert hours(store) == {CalendarPeriod.DAY: 4.0, CalendarPeriod.WEEK: 8.0, CalendarPeriod.MONTH: 8.0}


def test_running_jobs_count_up_to_now() -> None:
    store, running = GpuHours(ZONE), run(1, NOON_S - HOUR_S, None)
    assert hours(store, NOON_S, running)[CalendarPeriod.DAY] == 2.0
    assert hours(store, NOON_S + HOUR_S, running)[CalendarPeriod.DAY] == 4.0


def test_a_run_reported_twice_counts_once_and_each_run_of_a_job_counts() -> None:
    store = GpuHours(ZONE)
    for _ in range(2):
        store.note_ended(run(1, NOON_S - 4 * HOUR_S, NOON_S - 3 * HOUR_S))
        store.note_ended(run(1, NOON_S - 2 * HOUR_S, NOON_S - HOUR_S))
    assert hours(store)[CalendarPeriod.DAY] == 4.0


def test_a_new_day_starts_at_zero_and_the_week_continues() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S - HOUR_S, NOON_S))
    assert hours(store)[CalendarPeriod.DAY] == 2.0
    tomorrow = hours(store, NOON_S + 86400)
    assert (tomorrow[CalendarPeriod.DAY], tomorrow[CalendarPeriod.WEEK]) == (0.0, 2.0)
    assert hours(store, NOON_S + 30 * 86400) == {}


def test_runs_that_took_no_time_or_no_gpu_leave_no_trace() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(1, NOON_S, NOON_S))
    store.note_ended(run(2, NOON_S - HOUR_S, NOON_S, mgpu=0))
    assert hours(store) == {}


def test_accounting_replaces_the_queue_for_a_resized_run() -> None:
    store, start_s = GpuHours(ZONE), NOON_S - 10 * HOUR_S
    store.note_gone(run(7, start_s, NOON_S, mgpu=1000))
    assert hours(store)[CalendarPeriod.DAY] == 10.0
    store.note_ended(run(7, start_s + 9 * HOUR_S, NOON_S + 1, mgpu=1000))
    store.note_ended(run(7, start_s, start_s + 9 * HOUR_S, mgpu=16000))
    store.note_gone(run(7, start_s, NOON_S + 2, mgpu=1000))  # a second off
    assert hours(store, NOON_S + 1)[CalendarPeriod.DAY] == 16 * 9 + 1 + 1 / HOUR_S


def test_a_run_resized_and_ended_between_two_polls_counts_as_it_ran() -> None:
    store = GpuHours(ZONE)
    hours(store, NOON_S, run(7, NOON_S - HOUR_S, None, mgpu=16000))
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S, mgpu=1000))
    assert hours(store)[CalendarPeriod.DAY] == 16.0


def test_a_run_of_the_queue_is_not_cut_short_by_the_run_before_it() -> None:
    store = GpuHours(ZONE)
    store.note_ended(run(7, NOON_S - 4 * HOUR_S, NOON_S - 2 * HOUR_S))
    assert hours(store, NOON_S, run(7, NOON_S - HOUR_S, None))[CalendarPeriod.DAY] == 6.0
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S))
    assert hours(store)[CalendarPeriod.DAY] == 6.0
