"""A record has the true value of every field of the contract, or a gap."""

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

# Quantities between samples


def test_quantities_are_interpolated_between_samples() -> None:
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


def test_a_missing_value_is_a_gap_and_not_zero() -> None:
    record = seen(sample(1000.0, processes=None, memory=None), sample(1001.0, processes=None, memory=None))
    present = {f.name for f in dataclasses.fields(Record) if getattr(record, f.name) is not None}
    required = {f.name for f in dataclasses.fields(Record) if f.default is dataclasses.MISSING}
    assert present == required | {"uptime_s"}
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
    # The first reading covers half a second; counters cover no time before it.
    assert record.power_w == Mean(1.5, 0.0, 0.0, 0.0)
    assert record.energy_j == Total(1.0, 0.0)
    assert record.pcie_rx_bytes == Total(1.0, 0)
    assert record.ecc_corrected == Total(1.0, 0)
    assert record.throttle_s == {}
    assert record.tensor_frac == Mean(2.0, 0.0, 0.0, 0.0)
    assert record.processes == Mean(1.5, 0.0, 0.0, 0.0)
    assert record.no_process_s == 1.5
    assert record.sm_active_frac is None


def test_a_pause_in_sampling_is_a_gap_except_for_counters() -> None:
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
    readings=st.lists(st.tuples(st.integers(10, 3000), st.integers(0, 8)), min_size=1, max_size=30),
    late_ms=st.integers(1, 4900),
    in_one_go=st.booleans(),
)
def test_a_late_end_gives_the_same_record_as_a_timely_one(
    samples: list[tuple[int, int]], readings: list[tuple[int, int]], late_ms: int, in_one_go: bool
) -> None:
    """Test that activity between a slow epilog's time stamp and its file does not count for the job."""
    ends = [START + ms / 1000 for ms in accumulate((ms for ms, _ in samples), initial=0)]
    spans = [UtilizationSpan(a, b, pct) for (a, b), (_, pct) in zip(pairwise(ends), samples, strict=True)]
    read = [
        sample(START + at_ms / 1000, memory=DeviceMemory(eighths * TOTAL // 8, TOTAL))
        for at_ms, (_, eighths) in zip(accumulate(ms for ms, _ in readings), readings, strict=True)
    ]
    now_s = max(ends[-1], read[-1].reading.at_s)
    # No bin of the timeline ends at this time.
    end_s = max(START, now_s - late_ms / 1000) + 0.0005

    late, timely = tally(), tally()
    if in_one_go:
        late.utilization_alone(spans)
    else:
        for span in spans:
            late.utilization(*span, span.percent)
    for reading in read:
        late.add_sample(reading, GAP, GAP)
    late.record(now_s)
    late.end_s = timely.end_s = end_s
    for span in spans:
        if (part := allocated_part(span, START, end_s)) is not None:
            percent = alone(span, part)
            timely.utilization(part.start_s, part.end_s, percent, percent)
    for reading in read:
        timely.add_sample(reading, GAP, GAP)

    found, wanted = late.record(now_s, final=True), timely.record(now_s, final=True)
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
        assert _known_bins(found, name) == pytest.approx(_known_bins(wanted, name), abs=0.005), name


def _known_bins(record: Record, name: str) -> list[float | None]:
    """Return the timeline up to its last bin with a value."""
    bins = [] if record.timeline is None else timeline_of(record, name)
    while bins and bins[-1] is None:
        bins.pop()
    return bins


# Power and energy


def test_power_comes_from_the_energy_counter_and_its_extremes_from_samples() -> None:
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


def test_a_peak_between_samples_widens_the_extremes() -> None:
    record = seen(
        sample(1000.0, power_w=100.0, energy_mj=DeviceCounter(0)),
        sample(1001.0, power_w=100.0, energy_mj=DeviceCounter(250_000)),
    )
    assert record.power_w == Mean(1.0, 250.0, 100.0, 250.0)


def test_a_driver_reload_is_a_gap_of_its_counters() -> None:
    record = seen(
        sample(1000.0, power_w=100.0, energy_mj=DeviceCounter(9_000_000), ecc_corrected=DeviceCounter(4)),
        sample(1001.0, power_w=100.0, energy_mj=DeviceCounter(9_100_000), ecc_corrected=DeviceCounter(5)),
        sample(1002.0, power_w=100.0, energy_mj=DeviceCounter(40_000), ecc_corrected=DeviceCounter(0)),
        sample(1003.0, power_w=100.0, energy_mj=DeviceCounter(140_000), ecc_corrected=DeviceCounter(2)),
    )
    assert record.energy_j == Total(2.0, 200.0)
    assert record.ecc_corrected == Total(2.0, 3)
    assert record.power_w == Mean(3.0, 100.0, 100.0, 100.0)  # polled where the counter is a gap


def test_counters_are_not_compared_across_the_loss_of_a_device() -> None:
    one = tally()
    one.add_sample(sample(1000.0, energy_mj=DeviceCounter(0)), GAP, GAP)
    one.add_sample(sample(1001.0, energy_mj=DeviceCounter(100_000)), GAP, GAP)
    one.forget()
    one.add_sample(sample(1004.0, energy_mj=DeviceCounter(300_000)), GAP, GAP)
    one.add_sample(sample(1005.0, energy_mj=DeviceCounter(400_000)), GAP, GAP)
    assert one.record(1005.0).energy_j == Total(2.0, 200.0)


# Links


def test_the_timeline_of_a_link_covers_both_directions() -> None:
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


def test_fractions_of_unknown_limits_are_left_out() -> None:
    samples = [
        sample(1000.0 + s, power_w=200.0, sm_clock_mhz=1000.0, pcie_rx_bytes=DeviceCounter(s))
        for s in range(2)
    ]
    for facts in (None, DeviceProperties(uuid="GPU-0", index=0)):
        record = seen(*samples, facts=facts)
        assert record.timeline is not None
        assert set(record.timeline.series) == {"mem_used"}
        assert record.power_w == Mean(1.0, 200.0, 200.0, 200.0)


def test_gpm_replaces_counters_of_32_bits() -> None:
    def samples(bits: int) -> list[DeviceSample]:
        return [
            sample(
                at_s,
                pcie_rx_bytes=DeviceCounter(round(16e9 * (at_s - 999)) % 2**bits, bits),
                activity=Activity(seconds=1.0, pcie_rx_bytes_per_s=16e9, pcie_tx_bytes_per_s=0.1e9),
            )
            for at_s in (1001.0, 1002.0, 1003.0)
        ]

    by_gpm = seen(*samples(32))
    assert by_gpm.pcie_rx_bytes == Total(3.0, 48 * 10**9)
    assert by_gpm.pcie_tx_bytes == Total(3.0, 300 * 10**6)
    assert timeline_of(by_gpm, "pcie") == [0.252] * 4  # of 64 GB/s in both directions
    assert seen(*samples(64)).pcie_rx_bytes == Total(2.0, 32 * 10**9)
    no_gpm = [dataclasses.replace(each, reading=each.reading._replace(activity=None)) for each in samples(32)]
    assert seen(*no_gpm).pcie_rx_bytes is None


def test_subtraction_leaves_no_mean_below_zero() -> None:
    """Test that rounding errors cause no negative mean, which slurm-gpudbd would reject."""
    total = MeanSum()
    total.add(5.0, 0.0, 0.0, 0.0)
    for seconds in (0.1, 0.7):
        total.add(seconds, 1.0, 1.0, 1.0)
    for seconds in (0.7, 0.1):
        total.take_back(seconds, 1.0)
    value = total.value()
    assert value is not None
    assert value.mean == value.min == 0.0


def test_a_wrong_total_of_memory_affects_only_its_own_reading() -> None:
    """Test that the last reading of a job does not scale earlier readings."""
    wrong = sample(START + 100, memory=DeviceMemory(TOTAL // 4, 16 * TOTAL))
    used = mean(seen(*(sample(START + n) for n in range(100)), wrong).mem_used_frac)
    assert used == pytest.approx(0.25, abs=0.003)
