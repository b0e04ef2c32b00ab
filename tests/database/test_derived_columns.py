import time
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S, RunPart
from slurm_gpu.database.accounting.derived_columns import (
    DERIVED_FROM,
    coverage_at,
    derive,
    first_submits,
    resolve_double_watches,
)
from slurm_gpu.database.accounting.writer import read_record
from slurm_gpu.database.storage.packed import pack_statistics, unpacker
from slurm_gpu.database.storage.schema import run_device
from slurm_gpu.wire import Mean, Record, Total
from tests.database.samples import T0, idle, record, segment

NODES = frozenset({"n1", "n2", "n3"})


def _derive(
    records: list[Record], mgpu: int | None = 1000, elapsed_s: int | None = 10
) -> dict[str, float | None]:
    part = RunPart(nodes=NODES, allocated_mgpu=mgpu, start_s=T0, elapsed_s=elapsed_s)
    derived = derive(records, parts=[part], min_coverage=0.8)
    return {name: getattr(derived, name) for name in derived.__slots__}


def test_derived_columns_do_not_depend_on_unread_statistics() -> None:
    """Test that DERIVED_FROM contains all statistics that derived columns depend on."""
    full, read, unpack = list[Record](), list[Record](), unpacker(DERIVED_FROM)
    for n, device in enumerate(("GPU-1", "GPU-1", "GPU-2")):
        found = record(segment=segment(n), device=device, first_s=T0 + n, last_s=T0 + 10, uptime_s=50.5 + n)
        others: dict[str, Any] = {"mem_hist_ms": {7: 100}, "throttle_s": {"sw_power_cap": 1.0}}
        others |= {f.name: Mean(5.0, 0.5, 0.1, 0.9) for f in fields(Record) if f.type == "Mean | None"}
        others |= {f.name: Total(9.0, 500.0) for f in fields(Record) if f.type == "Total | None"}
        full.append(replace(found, no_process_s=1.0, **others))
        wire = full[-1].to_wire()
        row: Any = {c.name: wire.get(c.name) for c in run_device.columns}
        read.append(read_record({**row, "statistics": unpack(pack_statistics(wire))}))  # type: ignore[arg-type]
    assert read != full
    assert all(getattr(found, name) is not None for found in read for name in DERIVED_FROM)
    kept, doubled = resolve_double_watches(full)
    assert doubled
    assert _derive(resolve_double_watches(read)[0], 2000) == _derive(kept, 2000)


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
        "granted_mgpu": 0,
        "ugpucore": None,
        "ugpumem": None,
        "coverage": None,
        "energy_j": None,
        "no_process_mgpu_s": None,
    }


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
    assert at(late, end_s=None) is None, "it is running"
    assert at(late, granted_mgpu=0) is None, "no GPU"
    assert at(late, granted_mgpu=None) is None, "the number is unknown"
    assert at(late, elapsed_s=0) is None, "there was nothing to measure"


def test_coverage_of_a_running_job_counts_up_to_its_newest_record() -> None:
    assert _derive([record(last_s=T0 + 10)], elapsed_s=None)["coverage"] == 1.0
    assert _derive([], elapsed_s=None)["coverage"] is None


def test_suspended_time_does_not_lower_coverage_of_a_running_job() -> None:
    before = record(last_s=T0 + 100, sampled_s=40.0, suspended_s=60.0)
    after = record(segment=segment(2), first_s=T0 + 100, last_s=T0 + 200, sampled_s=90.0, suspended_s=10.0)
    other = record(device="GPU-2", last_s=T0 + 200, sampled_s=130.0, suspended_s=None)
    assert _derive([before, after], elapsed_s=None)["coverage"] == 1.0
    assert _derive([before, after, other], 2000, elapsed_s=None)["coverage"] == 1.0


def test_a_run_that_slurm_counts_as_no_time_has_a_coverage_as_it_has_a_utilisation() -> None:
    brief = record(allocated_s=0.75, sampled_s=0.5, util_hist_ms={0: 600})
    assert (_derive([brief], elapsed_s=0)["ugpucore"], _derive([brief], elapsed_s=0)["coverage"]) == (
        0,
        2 / 3,
    )
    unseen = idle(allocated_s=0.0)
    assert (_derive([unseen], elapsed_s=0)["ugpucore"], _derive([unseen], elapsed_s=0)["coverage"]) == (
        None,
        None,
    )


def test_the_energy_of_a_part_of_the_time_does_not_pass_for_the_whole() -> None:
    assert _derive([record(energy_j=Total(8.0, 1440.0))])["energy_j"] == 1440
    assert _derive([record(energy_j=Total(6.0, 1440.0))])["energy_j"] is None
    assert _derive([record()], 2000)["energy_j"] is None, "nothing is known of the other GPU"


def test_the_energy_of_a_pause_or_of_what_came_after_does_not_pass_for_that_of_the_work() -> None:
    paused = idle(
        prolog_s=T0, first_s=T0 + 1000, last_s=T0 + 2000, suspended_s=1000.0, energy_j=Total(1000.0, 6e4)
    )
    assert _derive([paused], elapsed_s=1000)["energy_j"] is None, "of the work before it nothing is known"
    long = replace(paused, last_s=T0 + 11_000, allocated_s=1e4, suspended_s=1e4, energy_j=Total(1e4, 6e5))
    assert _derive([long], elapsed_s=1000)["energy_j"] is None, "nor if it is most of the time"
    both = record(last_s=T0 + 2000, sampled_s=1000.0, suspended_s=1000.0, energy_j=Total(2000.0, 4e5))
    assert _derive([both], elapsed_s=1000)["energy_j"] == 4e5
    after = idle(prolog_s=T0, first_s=T0 + 1000, last_s=T0 + 2000, energy_j=Total(1000.0, 6e4))
    assert _derive([after], elapsed_s=1000)["energy_j"] is None


def test_nodes_that_report_at_different_times_leave_no_gap_in_a_running_job() -> None:
    old = record(last_s=T0 + 60)
    new = record(node="n2", segment=segment(2), last_s=T0 + 130)
    assert _derive([old, new], 2000, elapsed_s=None)["coverage"] == 1.0
    assert _derive([old, new], 3000, elapsed_s=None)["coverage"] == 1.0, "n3 has not reported yet"


def test_a_silent_node_leaves_a_gap_in_a_running_job() -> None:
    silent = record(last_s=T0 + 60)
    hours = record(node="n2", segment=segment(2), last_s=T0 + 7200)
    assert _derive([silent, hours], 2000, elapsed_s=None)["coverage"] == pytest.approx(7260 / 14400)
    assert _derive([hours], 2000, elapsed_s=None)["coverage"] == 0.5, "n1 and n3 have not reported"
    mute = record(last_s=T0 + 60, sampled_s=6.0)
    assert _derive([mute], elapsed_s=None)["coverage"] == 0.1, "what was not sampled is no matter of age"


def test_a_gpu_missing_from_a_nodes_reports_is_a_gap_at_once() -> None:
    part = RunPart(nodes=frozenset({"n1"}), allocated_mgpu=2000, start_s=T0, elapsed_s=None)
    assert derive([record(last_s=T0 + 60)], parts=[part], min_coverage=0.8).coverage == 0.5


def test_unwatched_time_at_the_start_lowers_coverage_of_a_running_job() -> None:
    late = record(prolog_s=T0, first_s=T0 + 50, last_s=T0 + 100)
    assert _derive([late], elapsed_s=None)["coverage"] == 0.5


def test_time_between_two_watches_lowers_coverage() -> None:
    first, second = record(), record(segment=segment(2), prolog_s=T0, first_s=T0 + 90, last_s=T0 + 100)
    assert _derive([first, second], elapsed_s=None)["coverage"] == 0.2
    assert _derive([first, second], elapsed_s=100)["coverage"] == 0.2


@pytest.mark.parametrize("elapsed_s", [0, 1])
def test_coverage_of_a_run_below_a_second_uses_the_node_s_allocated_time(elapsed_s: int) -> None:
    """Test a run of 0 or 1 s, because Slurm truncates its times to whole seconds."""
    brief = record(
        last_s=T0, allocated_s=0.4, sampled_s=0.4, util_hist_ms={30: 400}, energy_j=Total(0.4, 80.0)
    )
    assert (_derive([brief], elapsed_s=elapsed_s)["coverage"], _derive([brief])["energy_j"]) == (1.0, None)
    assert _derive([brief], elapsed_s=elapsed_s)["energy_j"] == 80.0
    half = record(last_s=T0, allocated_s=0.4, sampled_s=0.2, util_hist_ms={30: 200})
    assert _derive([half], elapsed_s=elapsed_s)["coverage"] == 0.5


def test_the_nodes_own_time_counts_only_within_slurms_rounding() -> None:
    assert _derive([record(last_s=T0 + 8)], elapsed_s=10)["coverage"] == 0.8
    assert _derive([record(allocated_s=9.5, sampled_s=9.5)], elapsed_s=10)["coverage"] == 1.0


def test_coverage_never_exceeds_one() -> None:
    assert _derive([record(allocated_s=12.0, sampled_s=12.0)])["coverage"] == 1.0


def test_samples_after_slurms_end_fill_no_gap_before_it() -> None:
    """Test a restart of slurm-gpud while a job is completing for a long time, because its epilog hangs."""
    stuck = record(prolog_s=T0, first_s=T0 + 600, last_s=T0 + 1200, util_hist_ms={0: 600_000})
    assert _derive([stuck], elapsed_s=600)["coverage"] == 0.0
    always = record(last_s=T0 + 1200)
    assert _derive([always], elapsed_s=600)["coverage"] == 1.0
    assert _derive([always], 2000, elapsed_s=600)["coverage"] == 0.5, "of the other GPU nothing is known"


def test_unknown_shares_in_slurm_come_from_the_nodes() -> None:
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
        record(segment=segment(n), first_s=T0 + a, last_s=T0 + a + b, allocated_s=60.0, sampled_s=float(s))
        for n, (a, b, s) in enumerate(spans)
    ]
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    once, again = resolve_double_watches(records), resolve_double_watches(shuffled)
    assert once == again
    kept = once[0]
    for a in kept:
        for b in kept:
            assert a is b or _overlap_s(a, b) <= 1
    expected: list[Record] = []
    for item in sorted(records, key=lambda item: (-item.sampled_s, item.segment)):
        if all(_overlap_s(item, other) <= 1 for other in expected):
            expected.append(item)
    assert kept == expected
    assert all(d.kept in kept and _overlap_s(d.kept, d.dropped) > 1 for d in once[1])


def _overlap_s(a: Record, b: Record) -> int:
    return min(a.last_s, b.last_s) - max(a.first_s, b.first_s)


def test_a_flood_of_segments_of_one_run_is_resolved_in_no_time() -> None:
    flood = [record(segment=segment(n), first_s=T0 + 20 * n, last_s=T0 + 20 * n + 10) for n in range(20_000)]
    began = time.process_time()
    kept, doubled = resolve_double_watches(flood)
    assert time.process_time() - began < 5, "looking at each pair takes a minute"
    assert (len(kept), doubled) == (20_000, [])


@pytest.mark.parametrize(
    ("runs", "firsts"),
    [
        ([], []),
        ([(10, "COMPLETED")], [10]),
        ([(10, "REQUEUED"), (20, "NODE_FAIL"), (30, "COMPLETED")], [10, 10, 10]),
        ([(10, "COMPLETED"), (900, "REQUEUED"), (950, "FAILED")], [10, 900, 900]),
        ([(10, "RESIZING"), (20, "REQUEUED"), (30, "COMPLETED")], [10, 10, 10]),
    ],
)
def test_the_first_submit_goes_back_through_requeues_and_resizes_only(
    runs: list[tuple[int, str]], firsts: list[int]
) -> None:
    assert first_submits(runs) == firsts


def test_time_without_a_process_counts_as_much_of_a_device_as_the_run_had() -> None:
    busy = record(granted_mgpu=1000, no_process_s=0.0)
    assert _derive([busy])["no_process_mgpu_s"] == 0
    quarter = record(device="GPU-2", granted_mgpu=250, no_process_s=4.5)
    later = record(device="GPU-2", segment=segment(2), first_s=T0 + 10, granted_mgpu=250, no_process_s=5.0)
    assert _derive([busy, quarter, later], 1250)["no_process_mgpu_s"] == 2375
    cannot_tell = record(device="GPU-3", granted_mgpu=1000, no_process_s=None)
    assert _derive([cannot_tell])["no_process_mgpu_s"] is None
    assert _derive([quarter, cannot_tell], 1250)["no_process_mgpu_s"] == 1125
