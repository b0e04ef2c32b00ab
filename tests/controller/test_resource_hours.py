"""GPU-hours and CPU-hours of periods in the time zone of the site; each run counts once."""

from __future__ import annotations

import math
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.queue.amounts import Amounts
from slurm_gpu.controller.queue.resource_hours import CountedRun, ResourceHours, committed_hours, hourly_use
from slurm_gpu.controller.queue.usage import Subject, UsageOwner
from slurm_gpu.policy.language.periods import period_start
from slurm_gpu.policy.lua.installed import GroupInForce

from .fakes import NOON_S

ALICE = UsageOwner(1001, "alice", "vision", "normal", "gpu")
GRADS = GroupInForce("grads", accounts=frozenset({"vision"}))
HOUR_S = 3600
ZONE = ZoneInfo("UTC")


def run(job_id: int, start_s: int, end_s: int | None, mgpu: int = 2000, cpus: int = 0) -> CountedRun:
    return CountedRun(job_id, ALICE, {"gpu_h": mgpu / 1000, "cpu_h": cpus}, start_s, end_s)


def hours(store: ResourceHours, now_s: int = NOON_S, *running: CountedRun) -> dict[str, float]:
    starts = {f"gpu_h_{period}": period_start(period, now_s, ZONE) for period in ("day", "week", "month")}
    found = store.totals(running, [GRADS], starts, now_s).get(Subject("alice", "grads"), {})
    return {key.removeprefix("gpu_h_"): value for key, value in found.items()}


def test_a_run_counts_in_each_period_by_its_overlap() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    store.note_ended(run(1, NOON_S - 14 * HOUR_S, NOON_S - 10 * HOUR_S))  # from 22:00 to 02:00
    assert hours(store) == {"day": 4.0, "week": 8.0, "month": 8.0}


def test_running_jobs_count_up_to_now() -> None:
    store, running = ResourceHours(ZONE, ["gpu_h"]), run(1, NOON_S - HOUR_S, None)
    assert hours(store, NOON_S, running)["day"] == 2.0
    assert hours(store, NOON_S + HOUR_S, running)["day"] == 4.0


def test_a_run_reported_twice_counts_once_and_each_run_of_a_job_counts() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    for _ in range(2):
        store.note_ended(run(1, NOON_S - 4 * HOUR_S, NOON_S - 3 * HOUR_S))
        store.note_ended(run(1, NOON_S - 2 * HOUR_S, NOON_S - HOUR_S))
    assert hours(store)["day"] == 4.0


def test_a_new_day_starts_at_zero_and_the_week_continues() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    store.note_ended(run(1, NOON_S - HOUR_S, NOON_S))
    assert hours(store)["day"] == 2.0
    tomorrow = hours(store, NOON_S + 86400)
    assert (tomorrow["day"], tomorrow["week"]) == (0.0, 2.0)
    assert hours(store, NOON_S + 30 * 86400) == {}


def test_runs_that_took_no_time_or_no_gpu_leave_no_trace() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    store.note_ended(run(1, NOON_S, NOON_S))
    store.note_ended(run(2, NOON_S - HOUR_S, NOON_S, mgpu=0))
    assert hours(store) == {}


def test_each_unit_has_its_own_sums_and_runs_without_gpus_count_for_cpus() -> None:
    store = ResourceHours(ZONE, ["gpu_h", "cpu_h"])
    store.note_ended(run(1, NOON_S - 14 * HOUR_S, NOON_S - 10 * HOUR_S, cpus=8))
    store.note_ended(run(2, NOON_S - 2 * HOUR_S, NOON_S - HOUR_S, mgpu=0, cpus=4))
    store.note_gone(run(3, NOON_S - HOUR_S, NOON_S, mgpu=0, cpus=1))
    starts = {"gpu_h_week": period_start("week", NOON_S, ZONE), "cpu_h_day": NOON_S - 12 * HOUR_S}
    running = run(4, NOON_S - HOUR_S, None, mgpu=0, cpus=16)
    for _ in range(2):
        found = store.totals([running], [GRADS], starts, NOON_S)[Subject("alice", "grads")]
        assert found == {"gpu_h_week": 8.0, "cpu_h_day": 16.0 + 4 + 1 + 16}
    tomorrow = {"gpu_h_week": starts["gpu_h_week"], "cpu_h_day": NOON_S + 12 * HOUR_S}
    found = store.totals([], [GRADS], tomorrow, NOON_S + 13 * HOUR_S)[Subject("alice", "grads")]
    assert (found["gpu_h_week"], found["cpu_h_day"]) == (8.0, 0.0 + 16)


def test_the_previous_period_ends_where_the_present_one_begins() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    midnight_s = NOON_S - 12 * HOUR_S
    store.note_ended(
        run(1, midnight_s - 30 * HOUR_S, midnight_s - 20 * HOUR_S)
    )  # the day before yesterday: 6 h
    store.note_gone(run(2, midnight_s - HOUR_S, midnight_s + 2 * HOUR_S))
    running = run(3, midnight_s - 3 * HOUR_S, None)
    for now_s, expected in ((NOON_S, (2 * 4 + 2 * 4, 2 * 2 + 2 * 12)), (NOON_S + 86400, (4 + 48, 24))):
        keys = ("gpu_h_day_before", "gpu_h_day")
        starts = {key: period_start(key.removeprefix("gpu_h_"), now_s, ZONE) for key in keys}
        for _ in range(2):
            found = store.totals([running], [GRADS], starts, now_s)[Subject("alice", "grads")]
            assert tuple(found[key] for key in keys) == expected


def test_accounting_replaces_the_queue_for_a_resized_run() -> None:
    store, start_s = ResourceHours(ZONE, ["gpu_h"]), NOON_S - 10 * HOUR_S
    store.note_gone(run(7, start_s, NOON_S, mgpu=1000))
    assert hours(store)["day"] == 10.0
    store.note_ended(run(7, start_s + 9 * HOUR_S, NOON_S + 1, mgpu=1000))
    store.note_ended(run(7, start_s, start_s + 9 * HOUR_S, mgpu=16000))
    store.note_gone(run(7, start_s, NOON_S + 2, mgpu=1000))  # a second off
    assert hours(store, NOON_S + 1)["day"] == 16 * 9 + 1 + 1 / HOUR_S


def test_a_run_resized_and_ended_between_two_polls_counts_as_it_ran() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    hours(store, NOON_S, run(7, NOON_S - HOUR_S, None, mgpu=16000))
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S, mgpu=1000))
    assert hours(store)["day"] == 16.0


def test_a_run_of_the_queue_is_not_cut_short_by_the_run_before_it() -> None:
    store = ResourceHours(ZONE, ["gpu_h"])
    store.note_ended(run(7, NOON_S - 4 * HOUR_S, NOON_S - 2 * HOUR_S))
    assert hours(store, NOON_S, run(7, NOON_S - HOUR_S, None))["day"] == 6.0
    store.note_gone(run(7, NOON_S - HOUR_S, NOON_S))
    assert hours(store)["day"] == 6.0


def test_earlier_parts_of_a_running_run_are_kept() -> None:
    """Slurm 22.05 reports a resized run with the start of its first part."""
    store, start_s = ResourceHours(ZONE, ["gpu_h"]), NOON_S - 10 * 86400
    store.note_ended(run(7, start_s, start_s + HOUR_S, mgpu=16000))
    store.note_ended(run(8, NOON_S - HOUR_S, NOON_S))
    running = run(7, start_s, None, mgpu=1000)
    expected = 16 + 10 * 24 - 1 + 2
    assert [hours(store, NOON_S, running)["month"] for _ in range(2)] == [expected, expected]


def test_a_run_of_long_ago_counts_in_the_year_and_is_not_kept() -> None:
    store, starts = ResourceHours(ZONE, ["gpu_h"]), {"gpu_h_day": NOON_S - 12 * HOUR_S}
    starts["gpu_h_year"] = NOON_S - 300 * 86400 - 12 * HOUR_S
    for day in (*range(31), *range(300, 30, -1)):  # the latest ones first, as they are read
        store.note_ended(run(day, NOON_S - day * 86400 - HOUR_S, NOON_S - day * 86400))
    found = store.totals([], [GRADS], starts, NOON_S)[Subject(None, "grads")]
    assert found == {"gpu_h_day": 2.0, "gpu_h_year": 602.0}
    assert len(store._ended) < 10


@given(
    st.lists(st.tuples(st.integers(0, 400 * 24), st.integers(1, 100), st.integers(1, 8)), max_size=30),
    st.sampled_from(["America/New_York", "UTC", "Africa/Cairo"]),
)
def test_days_add_up_to_each_period(runs: list[tuple[int, int, int]], zone_name: str) -> None:
    zone = ZoneInfo(zone_name)
    periods = ("day", "quarter", "quarter_before", "30d", "year", "year_before")
    store = ResourceHours(zone, ["gpu_h"])
    starts = {f"gpu_h_{p}": period_start(p, NOON_S, zone) for p in periods}
    expected = dict.fromkeys(starts, 0.0)
    for number, (ago_h, length_h, gpus) in enumerate(sorted(runs, key=lambda one: one[1] - one[0])):
        start_s = NOON_S - ago_h * HOUR_S
        end_s = min(start_s + length_h * HOUR_S, NOON_S)
        store.note_ended(run(number, start_s, end_s, 1000 * gpus))
        for period, first_s in starts.items():
            last_s = min(end_s, starts[period.removesuffix("_before")]) if "_before" in period else end_s
            expected[period] += max(last_s - max(start_s, first_s), 0) / HOUR_S * gpus
    found = store.totals([], [GRADS], starts, NOON_S).get(Subject(None, "grads"), dict.fromkeys(starts, 0.0))
    assert found == pytest.approx(expected)


def test_jobs_commit_the_rest_of_their_time_limit() -> None:
    two, one = {"gpu_h": 2, "cpu_h": 8}, {"gpu_h": 1}
    jobs = [(ALICE, two, 3600.0), (ALICE, one, -5.0), (ALICE, one, math.inf)]
    group = replace(GRADS, has_hard_limit=True)
    found = committed_hours(jobs, [group, GroupInForce("all")], ["gpu_h_committed", "cpu_h_committed"])
    assert found[Subject(None, "grads")] == {"gpu_h_committed": 2 + 365 * 24, "cpu_h_committed": 8}
    assert Subject(None, "all") not in found


def test_gpus_of_unknown_type_count_for_every_type() -> None:
    job = Amounts(mgpu=3500, cpus=8, mib=0, nodes=1, mgpu_by_type={"a100": 2000, "v100": 1000}, billing=9)
    units = ["gpu_h", "gpu_h:a100", "gpu_h:v100", "gpu_h:h100", "billing_h"]
    assert hourly_use(job, None, units) == {
        "gpu_h": 3.5,
        "gpu_h:a100": 2.5,
        "gpu_h:v100": 1.5,
        "gpu_h:h100": 0.5,
        "billing_h": 9,
    }
    typed = replace(job, mgpu=3000)
    assert "gpu_h:h100" not in hourly_use(typed, None, units)
    in_partition = hourly_use(job, frozenset({"a100", "v100"}), units)
    assert (in_partition["gpu_h:v100"], in_partition.get("gpu_h:h100")) == (1.5, None)
