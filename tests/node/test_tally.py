"""A record has every field of the contract as it was, and a gap where nobody could say."""

import dataclasses
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter, DeviceMemory, DeviceProperties
from slurm_gpu.node.measure.shares import allocated_part, alone
from slurm_gpu.node.measure.statistics import MeanSum
from slurm_gpu.node.measure.tally import DeviceSample
from slurm_gpu.node.measure.utilization import UtilizationSpan
from slurm_gpu.wire import (
    Mean,
    Record,
    Total,
)
from tests.node.samples import GAP, START, TOTAL, mean, sample, seen, tally, timeline_of

# Quantities between looks


def test_between_two_looks_a_quantity_runs_straight() -> None:
    record = seen(
        sample(1000.0, temp_c=40.0, sm_clock_mhz=1000.0, mem_util_pct=0.0),
        sample(1002.0, temp_c=60.0, sm_clock_mhz=2000.0, mem_util_pct=0.0),
        sample(1003.0, temp_c=60.0, sm_clock_mhz=2000.0, mem_util_pct=0.0),
    )
    assert record.temp_c == Mean(3.0, pytest.approx(160 / 3, rel=1e-6), 40.0, 60.0)
    assert record.sm_clock_mhz == Mean(3.0, pytest.approx(5000 / 3, rel=1e-6), 1000.0, 2000.0)
    assert record.mem_util_pct == Mean(3.0, 0.0, 0.0, 0.0)
    assert record.mem_used_mib == Mean(3.0, 10240.0, 10240.0, 10240.0)
    assert record.mem_used_frac == Mean(3.0, 0.25, 0.25, 0.25)


def test_what_a_device_does_not_tell_is_a_gap_and_not_zero() -> None:
    record = seen(sample(1000.0, processes=None, memory=None), sample(1001.0, processes=None, memory=None))
    told = {f.name for f in dataclasses.fields(Record) if getattr(record, f.name) is not None}
    required = {f.name for f in dataclasses.fields(Record) if f.default is dataclasses.MISSING}
    assert told == required | {"uptime_s"}
    assert record.sampled_s == 0


def test_zero_is_counted() -> None:
    zero = DeviceCounter(0)
    record = seen(
        *(
            sample(
                at_s,
                processes=0,
                power_w=0.0,
                energy_mj=zero,
                pcie_rx_bytes=zero,
                ecc_corrected=zero,
                throttle=(),
                activity=Activity(seconds=1.0, tensor=0.0),
            )
            for at_s in (1001.0, 1002.0)
        )
    )
    # The first reading covers half a second, and counters nothing before it.
    assert record.power_w == Mean(1.5, 0.0, 0.0, 0.0)
    assert record.energy_j == Total(1.0, 0.0)
    assert record.pcie_rx_bytes == Total(1.0, 0)
    assert record.ecc_corrected == Total(1.0, 0)
    assert record.throttle_s == {}
    assert record.tensor_frac == Mean(2.0, 0.0, 0.0, 0.0)
    assert record.processes == Mean(1.5, 0.0, 0.0, 0.0)
    assert record.no_process_s == 1.5
    assert record.sm_active_frac is None


def test_a_pause_in_looking_is_a_gap_to_all_but_counters() -> None:
    record = seen(
        sample(1000.0, temp_c=40.0, energy_mj=DeviceCounter(0)),
        sample(1001.0, temp_c=40.0, energy_mj=DeviceCounter(100_000)),
        sample(1009.0, temp_c=80.0, energy_mj=DeviceCounter(900_000)),
        sample(1010.0, temp_c=80.0, energy_mj=DeviceCounter(1_000_000)),
    )
    assert record.temp_c == Mean(2.5, 64.0, 40.0, 80.0)
    assert record.energy_j == Total(10.0, 1000.0)
    assert record.power_w == Mean(10.0, 100.0, 100.0, 100.0)


def test_nothing_counts_before_the_prolog_and_after_the_epilog() -> None:
    record = seen(
        sample(1000.0, temp_c=40.0, pcie_tx_bytes=DeviceCounter(0), throttle=("hw_slowdown",)),
        sample(1004.0, temp_c=40.0, pcie_tx_bytes=DeviceCounter(4000), throttle=("hw_slowdown",)),
        end_s=1003.0,
    )
    assert record.allocated_s == 3.0
    assert record.temp_c == Mean(3.0, 40.0, 40.0, 40.0)
    assert record.pcie_tx_bytes == Total(3.0, 3000)
    assert record.throttle_s == {"hw_slowdown": 3.0}


@given(
    samples=st.lists(st.tuples(st.integers(100, 1500), st.integers(0, 100)), min_size=1, max_size=30),
    looks=st.lists(st.tuples(st.integers(10, 3000), st.integers(0, 8)), min_size=1, max_size=30),
    late_ms=st.integers(1, 4900),
    in_one_go=st.booleans(),
)
def test_an_end_that_is_told_late_is_as_if_it_had_been_told_at_once(
    samples: list[tuple[int, int]], looks: list[tuple[int, int]], late_ms: int, in_one_go: bool
) -> None:
    """A hook is slow on a busy node: what was counted between its stamp and its file was not the job's."""
    ends = [START + ms / 1000 for ms in accumulate((ms for ms, _ in samples), initial=0)]
    spans = [UtilizationSpan(a, b, pct) for (a, b), (_, pct) in zip(pairwise(ends), samples, strict=True)]
    readings = [
        sample(START + at_ms / 1000, memory=DeviceMemory(eighths * TOTAL // 8, TOTAL))
        for at_ms, (_, eighths) in zip(accumulate(ms for ms, _ in looks), looks, strict=True)
    ]
    now_s = max(ends[-1], readings[-1].reading.at_s)
    # No bin of the timeline_of ends just then.
    end_s = max(START, now_s - late_ms / 1000) + 0.0005

    late, at_once = tally(), tally()
    if in_one_go:
        late.utilization_alone(spans)
    else:
        for span in spans:
            late.utilization(*span, span.percent)
    for reading in readings:
        late.add_sample(reading, GAP, GAP)
    late.record(now_s)
    late.end_s = at_once.end_s = end_s
    for span in spans:
        if (part := allocated_part(span, START, end_s)) is not None:
            percent = alone(span, part)
            at_once.utilization(part.start_s, part.end_s, percent, percent)
    for reading in readings:
        at_once.add_sample(reading, GAP, GAP)

    found, wanted = late.record(now_s, final=True), at_once.record(now_s, final=True)
    assert found.allocated_s == wanted.allocated_s
    assert found.sampled_s == pytest.approx(wanted.sampled_s, abs=0.002)
    for name in ("util_hist_ms", "mem_hist_ms"):
        ours, theirs = getattr(found, name) or {}, getattr(wanted, name) or {}
        assert all(abs(ours.get(pct, 0) - theirs.get(pct, 0)) <= 2 for pct in {*ours, *theirs}), name
    for name in ("device_util_pct", "mem_used_mib", "mem_used_frac"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if theirs is not None and theirs.seconds > 0.01:
            assert (ours.seconds, ours.mean) == pytest.approx((theirs.seconds, theirs.mean), abs=2e-3), name
    for name in ("util", "mem_used"):
        assert _told(found, name) == pytest.approx(_told(wanted, name), abs=0.005), name


def _told(record: Record, name: str) -> list[float | None]:
    """The timeline_of up to its last bin that tells anything."""
    told = [] if record.timeline is None else timeline_of(record, name)
    while told and told[-1] is None:
        told.pop()
    return told


# Power and energy


def test_power_is_what_the_energy_counter_says_and_its_extremes_what_was_seen() -> None:
    record = seen(
        sample(1000.0, power_w=100.0, energy_mj=DeviceCounter(5_000_000)),
        sample(1001.0, power_w=350.0, energy_mj=DeviceCounter(5_300_000)),
        sample(1002.0, power_w=90.0, energy_mj=DeviceCounter(5_600_000)),
    )
    assert record.power_w == Mean(2.0, 300.0, 90.0, 350.0)
    assert record.energy_j == Total(2.0, 600.0)
    assert timeline_of(record, "power") == [0.752, 0.752, 0.752]  # 300 of 400 W, to 1/250


def test_without_an_energy_counter_power_is_polled() -> None:
    record = seen(sample(1000.0, power_w=100.0), sample(1001.0, power_w=300.0))
    assert record.power_w == Mean(1.0, 200.0, 100.0, 300.0)
    assert record.energy_j == Total(1.0, 200.0)
    assert record.energy_sampled_s == 1.0


def test_a_peak_that_no_look_saw_widens_the_extremes() -> None:
    record = seen(
        sample(1000.0, power_w=100.0, energy_mj=DeviceCounter(0)),
        sample(1001.0, power_w=100.0, energy_mj=DeviceCounter(250_000)),
    )
    assert record.power_w == Mean(1.0, 250.0, 100.0, 250.0)


def test_a_driver_that_was_reloaded_is_a_gap_of_its_counters() -> None:
    record = seen(
        sample(1000.0, power_w=100.0, energy_mj=DeviceCounter(9_000_000), ecc_corrected=DeviceCounter(4)),
        sample(1001.0, power_w=100.0, energy_mj=DeviceCounter(9_100_000), ecc_corrected=DeviceCounter(5)),
        sample(1002.0, power_w=100.0, energy_mj=DeviceCounter(40_000), ecc_corrected=DeviceCounter(0)),
        sample(1003.0, power_w=100.0, energy_mj=DeviceCounter(140_000), ecc_corrected=DeviceCounter(2)),
    )
    assert record.energy_j == Total(2.0, 200.0)
    assert record.ecc_corrected == Total(2.0, 3)
    assert record.power_w == Mean(3.0, 100.0, 100.0, 100.0)  # polled where the counter says nothing


def test_a_device_that_was_away_is_not_compared_with_what_it_said_before() -> None:
    one = tally()
    one.add_sample(sample(1000.0, energy_mj=DeviceCounter(0)), GAP, GAP)
    one.add_sample(sample(1001.0, energy_mj=DeviceCounter(100_000)), GAP, GAP)
    one.forget()
    one.add_sample(sample(1004.0, energy_mj=DeviceCounter(300_000)), GAP, GAP)
    one.add_sample(sample(1005.0, energy_mj=DeviceCounter(400_000)), GAP, GAP)
    assert one.record(1005.0).energy_j == Total(2.0, 200.0)


# Links


def test_the_course_of_a_link_is_of_both_directions() -> None:
    record = seen(
        sample(
            999.75,
            pcie_rx_bytes=DeviceCounter(0),
            pcie_tx_bytes=DeviceCounter(0),
            nvlink_tx_bytes=DeviceCounter(0),
        ),
        sample(
            1000.75,
            pcie_rx_bytes=DeviceCounter(19_100 * 10**6),
            pcie_tx_bytes=DeviceCounter(100 * 10**6),
            nvlink_tx_bytes=DeviceCounter(150 * 10**9),
        ),
    )
    assert record.pcie_rx_bytes == Total(0.75, 14_325 * 10**6)
    assert timeline_of(record, "pcie") == [0.3]
    assert timeline_of(record, "nvlink") == [0.5]
    assert record.nvlink_rx_bytes is None


def test_fractions_of_what_is_unknown_are_left_out() -> None:
    looks = [
        sample(1000.0 + s, power_w=200.0, sm_clock_mhz=1000.0, pcie_rx_bytes=DeviceCounter(s))
        for s in range(2)
    ]
    for facts in (None, DeviceProperties(uuid="GPU-0", index=0)):
        record = seen(*looks, facts=facts)
        assert record.timeline is not None
        assert set(record.timeline.series) == {"mem_used"}
        assert record.power_w == Mean(1.0, 200.0, 200.0, 200.0)


def test_what_a_counter_of_32_bits_cannot_tell_gpm_does() -> None:
    def looks(bits: int) -> list[DeviceSample]:
        return [
            sample(
                at_s,
                pcie_rx_bytes=DeviceCounter(round(16e9 * (at_s - 999)) % 2**bits, bits),
                activity=Activity(seconds=1.0, pcie_rx_bytes_per_s=16e9, pcie_tx_bytes_per_s=0.1e9),
            )
            for at_s in (1001.0, 1002.0, 1003.0)
        ]

    by_gpm = seen(*looks(32))
    assert by_gpm.pcie_rx_bytes == Total(3.0, 48 * 10**9)
    assert by_gpm.pcie_tx_bytes == Total(3.0, 300 * 10**6)
    assert timeline_of(by_gpm, "pcie") == [0.252] * 4  # of 64 GB/s in both directions
    assert seen(*looks(64)).pcie_rx_bytes == Total(2.0, 32 * 10**9)
    no_gpm = [dataclasses.replace(each, reading=each.reading._replace(activity=None)) for each in looks(32)]
    assert seen(*no_gpm).pcie_rx_bytes is None


def test_taking_back_leaves_no_mean_below_zero() -> None:
    """What floats leave over would make a record that nobody takes."""
    total = MeanSum()
    total.add(5.0, 0.0, 0.0, 0.0)
    for seconds in (0.1, 0.7):
        total.add(seconds, 1.0, 1.0, 1.0)
    for seconds in (0.7, 0.1):
        total.take_back(seconds, 1.0)
    value = total.value()
    assert value is not None
    assert value.mean == value.min == 0.0


def test_a_wrong_total_of_memory_costs_the_time_of_its_reading_alone() -> None:
    """The last reading of a job must not scale what was measured before it."""
    wrong = sample(START + 100, memory=DeviceMemory(TOTAL // 4, 16 * TOTAL))
    used = mean(seen(*(sample(START + n) for n in range(100)), wrong).mem_used_frac)
    assert used == pytest.approx(0.25, abs=0.003)
