from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.derive import (
    SHIPPED_WITHIN_S,
    coverage_at,
    derive,
    first_submits,
    resolve_double_watches,
)
from slurm_gpu.records import Mean, Record, Total
from tests.database.samples import T0, idle, record, segment


def _derive(
    records: list[Record], mgpu: int | None = 1000, elapsed_s: int | None = 10
) -> dict[str, float | None]:
    derived = derive(records, allocated_mgpu=mgpu, start_s=T0, elapsed_s=elapsed_s, min_coverage=0.8)
    return {name: getattr(derived, name) for name in derived.__slots__}


def test_ugpucore_is_weighted_by_time_over_devices_and_segments() -> None:
    short = record(util_hist_ms={100: 1000}, sampled_s=1.0)
    long = record(device="GPU-2", util_hist_ms={0: 9000}, sampled_s=9.0)
    assert _derive([short, long], 2000)["ugpucore"] == 10.0


def test_ugpumem_is_the_weighted_mean_of_the_used_fraction() -> None:
    records = [
        record(mem_used_frac=Mean(1.0, 1.0, 1.0, 1.0)),
        record(device="GPU-2", mem_used_frac=Mean(3.0, 0.0, 0.0, 0.0)),
    ]
    assert _derive(records, 2000)["ugpumem"] == 25.0


def test_an_idle_gpu_is_zero_and_an_unwatched_one_a_gap() -> None:
    held = record(util_hist_ms={0: 10_000}, mem_used_frac=Mean(10.0, 0.0, 0.0, 0.0))
    assert (_derive([held])["ugpucore"], _derive([held])["ugpumem"], _derive([held])["coverage"]) == (0, 0, 1)
    unwatched = _derive([idle()])
    assert (unwatched["ugpucore"], unwatched["ugpumem"], unwatched["energy_j"]) == (None, None, None)
    assert unwatched["coverage"] == 0.0


def test_a_cpu_only_run_has_no_gpu_columns_at_all() -> None:
    derived = _derive([], 0)
    assert derived == {
        "granted_mgpu": 0, "ugpucore": None, "ugpumem": None, "coverage": None, "energy_j": None,
    }  # fmt: skip


def test_devices_without_any_record_lower_the_coverage() -> None:
    assert _derive([record()], 4000)["coverage"] == 0.25


def test_without_any_record_the_coverage_is_0_once_none_can_come_any_more() -> None:
    derived = _derive([], 4000)["coverage"]
    assert derived is None

    def at(after_s: float, **given: Any) -> float | None:
        known = {"coverage": derived, "granted_mgpu": 4000, "end_s": T0 + 10, "elapsed_s": 10}
        return coverage_at(T0 + 10 + after_s, **{**known, **given})

    assert at(0) is None
    assert at(SHIPPED_WITHIN_S) is None
    assert at(SHIPPED_WITHIN_S + 1) == 0.0
    late = SHIPPED_WITHIN_S + 1
    assert at(late, coverage=0.5) == at(0, coverage=0.5) == 0.5
    assert at(late, end_s=None) is None, "it goes on"
    assert at(late, granted_mgpu=0) is None, "no GPU"
    assert at(late, granted_mgpu=None) is None, "nobody knows of how many"
    assert at(late, elapsed_s=0) is None, "there was nothing to measure"


def test_coverage_of_a_running_job_counts_up_to_its_newest_record() -> None:
    assert _derive([record(last_s=T0 + 10)], elapsed_s=None)["coverage"] == 1.0
    assert _derive([], elapsed_s=None)["coverage"] is None


def test_time_suspended_lowers_no_coverage_of_a_job_that_goes_on() -> None:
    before = record(last_s=T0 + 100, sampled_s=40.0, suspended_s=60.0)
    after = record(segment=segment(2), first_s=T0 + 100, last_s=T0 + 200, sampled_s=90.0, suspended_s=10.0)
    other = record(device="GPU-2", last_s=T0 + 200, sampled_s=130.0, suspended_s=None)
    assert _derive([before, after], elapsed_s=None)["coverage"] == 1.0
    assert _derive([before, after, other], 2000, elapsed_s=None)["coverage"] == 1.0


def test_a_run_that_slurm_counts_as_no_time_has_a_coverage_as_it_has_a_utilisation() -> None:
    brief = record(held_s=0.75, sampled_s=0.5, util_hist_ms={0: 600})
    assert (_derive([brief], elapsed_s=0)["ugpucore"], _derive([brief], elapsed_s=0)["coverage"]) == (
        0,
        2 / 3,
    )
    unseen = idle(held_s=0.0)
    assert (_derive([unseen], elapsed_s=0)["ugpucore"], _derive([unseen], elapsed_s=0)["coverage"]) == (
        None,
        None,
    )


def test_the_energy_of_a_part_of_the_time_does_not_pass_for_the_whole() -> None:
    assert _derive([record(energy_j=Total(8.0, 1440.0))])["energy_j"] == 1440
    assert _derive([record(energy_j=Total(6.0, 1440.0))])["energy_j"] is None
    assert _derive([record()], 2000)["energy_j"] is None, "nothing is known of the other GPU"


def test_coverage_never_exceeds_one() -> None:
    assert _derive([record(held_s=12.0, sampled_s=12.0)])["coverage"] == 1.0


def test_what_slurm_cannot_say_of_shards_comes_from_the_nodes() -> None:
    shards = [record(granted_mgpu=250), record(node="n2", granted_mgpu=500, segment=segment(2))]
    assert _derive(shards, None)["granted_mgpu"] == 750
    assert _derive([*shards, record(node="n3", segment=segment(3))], None)["granted_mgpu"] is None


def test_the_longer_of_two_watches_counts_once() -> None:
    long, short = record(sampled_s=9.0), record(segment=segment(2), sampled_s=5.0)
    kept, doubled = resolve_double_watches([short, long])
    assert kept == [long]
    assert [(d.kept, d.dropped) for d in doubled] == [(long, short)]


def test_watches_that_follow_each_other_or_see_other_devices_are_both_kept() -> None:
    records = [
        record(),
        record(segment=segment(2), first_s=T0 + 9, last_s=T0 + 20),
        record(segment=segment(3), device="GPU-2"),
        record(segment=segment(4), node="n2"),
    ]
    kept, doubled = resolve_double_watches(records)
    assert len(kept) == 4
    assert doubled == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)), max_size=8), st.randoms()
)
def test_double_watches_are_resolved_alike_in_any_order(
    spans: list[tuple[int, int, int]], random: object
) -> None:
    records = [
        record(segment=segment(n), first_s=T0 + a, last_s=T0 + a + b, held_s=60.0, sampled_s=float(s))
        for n, (a, b, s) in enumerate(spans)
    ]
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    once, again = resolve_double_watches(records), resolve_double_watches(shuffled)
    assert once == again
    kept = once[0]
    for a in kept:
        for b in kept:
            assert a is b or min(a.last_s, b.last_s) - max(a.first_s, b.first_s) <= 1


@pytest.mark.parametrize(
    ("runs", "firsts"),
    [
        ([], []),
        ([(10, "COMPLETED")], [10]),
        ([(10, "REQUEUED"), (20, "NODE_FAIL"), (30, "COMPLETED")], [10, 10, 10]),
        ([(10, "COMPLETED"), (900, "REQUEUED"), (950, "FAILED")], [10, 900, 900]),
    ],
)
def test_the_first_submit_goes_back_through_requeues_only(
    runs: list[tuple[int, str]], firsts: list[int]
) -> None:
    assert first_submits(runs) == firsts
