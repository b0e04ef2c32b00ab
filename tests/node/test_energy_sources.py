"""Stalled energy counters and link counters that never grow are replaced by other sources or become gaps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter
from slurm_gpu.node.measure.tally import DeviceSample
from slurm_gpu.wire import Mean, Record, Total
from tests.node.samples import GAP, START, sample, seen, tally, timeline_of


def watched(watts: list[float | None], counted_j: list[float | None], *, seconds: float = 1.0) -> Record:
    """Return the record of readings taken every `seconds`."""
    return seen(
        *(
            sample(
                START + seconds * n,
                power_w=power,
                energy_mj=None if joules is None else DeviceCounter(round(1000 * joules)),
            )
            for n, (power, joules) in enumerate(zip(watts, counted_j, strict=True))
        )
    )


# Energy


def test_energy_of_a_stalled_counter_comes_from_power() -> None:
    record = watched([300.0] * 11, [9000.0] * 11)
    assert record.power_w == Mean(10.0, 300.0, 300.0, 300.0)
    assert record.energy_j == Total(10.0, 3000.0)
    assert record.energy_sampled_s == 10.0
    assert timeline_of(record, "power") == [0.752] * 11


def test_energy_of_a_counter_that_grows_too_slowly_comes_from_power() -> None:
    record = watched([300.0] * 11, [9000.0 + 3.0 * n for n in range(11)])
    assert record.energy_j == Total(10.0, 3000.0)
    assert record.energy_sampled_s == 10.0


def test_a_stalled_counter_without_samples_of_power_is_a_gap() -> None:
    record = watched([None] * 4, [9000.0] * 4)
    assert record.energy_j is None
    assert record.power_w is None
    assert record.energy_sampled_s is None


def test_a_constant_counter_at_0_w_is_a_measurement() -> None:
    record = watched([0.0] * 4, [9000.0] * 4)
    assert record.energy_j == Total(3.0, 0.0)
    assert record.energy_sampled_s is None


def test_a_power_limit_raised_during_a_job_loses_no_energy() -> None:
    """Raise the power limit from 400 W during the job, as sites do when more power is available."""
    joules = [*(350.0 * n for n in range(5)), *(1400.0 + 1200.0 * n for n in range(1, 6))]
    record = watched([350.0] * 5 + [1200.0] * 5, joules)
    assert record.energy_j == Total(9.0, joules[-1])
    assert record.energy_sampled_s is None


def test_a_counter_that_catches_up_is_used() -> None:
    """Test that power samples that account for only a part of the energy do not replace the counter."""
    record = watched([300.0] * 5, [0.0, 0.0, 0.0, 1000.0, 1330.0])
    assert record.energy_j == Total(4.0, 1330.0)
    assert record.energy_sampled_s is None
    assert record.power_w is not None
    assert record.power_w.seconds == 4.0


def test_a_counter_that_grows_again_is_used_from_then_on() -> None:
    record = watched([300.0] * 7, [0.0, 320.0, 320.0, 320.0, 320.0, 640.0, 960.0])
    assert record.energy_j == Total(6.0, 320.0 + 3 * 300.0 + 640.0)
    assert record.energy_sampled_s == 3.0


def test_a_counter_late_by_less_than_a_second_is_used_without_samples_of_power() -> None:
    record = watched([None] * 5, [0.0, 0.0, 0.0, 90.0, 120.0], seconds=0.1)
    assert record.energy_j == Total(0.4, 120.0)
    assert record.energy_sampled_s is None


def test_a_late_counter_without_samples_of_power_is_used_from_then_on() -> None:
    record = watched([None] * 5, [0.0, 0.0, 0.0, 900.0, 1200.0])
    assert record.energy_j == Total(1.0, 300.0)
    assert record.energy_sampled_s is None


def test_an_unrecovered_stall_without_samples_of_power_is_a_gap() -> None:
    record = watched([300.0, None, 300.0, 300.0], [0.0, 0.0, 300.0, 600.0])
    assert record.energy_j == Total(2.0, 600.0)
    assert record.energy_sampled_s is None


def test_growth_while_a_gpu_is_shared_does_not_make_up_for_a_stall() -> None:
    """Test that power samples replace the stalled interval, although the counter later catches up."""
    one = tally()
    for n, (joules, alone) in enumerate([(0.0, True), (0.0, True), (900.0, False), (1200.0, True)]):
        reading = sample(START + n, alone=alone, power_w=300.0, energy_mj=DeviceCounter(round(1000 * joules)))
        one.add_sample(reading, GAP, GAP)
    record = one.record(START + 3)
    assert record.energy_j == Total(2.0, 600.0)
    assert record.energy_sampled_s == 1.0


@settings(max_examples=200, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 10.0]),
            st.sampled_from([50.0, 300.0, 500.0]),
            st.sampled_from(["counts", "stalls", "lags", "absent", "reset"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_energy_matches_the_drawn_power_for_any_counter(
    steps: list[tuple[float, float, str, bool]],
) -> None:
    at_s, drawn_j, lost_j, unread_j = START, 0.0, 0.0, 0.0
    watts = 300.0
    samples = [sample(at_s, power_w=watts, energy_mj=DeviceCounter(0))]
    for seconds, watts_after, counter, has_power in steps:
        at_s += seconds
        grown_j = seconds * (watts + watts_after) / 2
        watts = watts_after
        drawn_j += grown_j
        if counter == "stalls":
            lost_j += grown_j
        elif counter == "lags":
            unread_j += grown_j
        else:
            unread_j = 0.0
        if counter == "reset":
            lost_j = drawn_j
        value = None if counter == "absent" else DeviceCounter(round(1000 * (drawn_j - lost_j - unread_j)))
        samples.append(sample(at_s, power_w=watts if has_power else None, energy_mj=value))
    one = tally()
    for each in samples:
        one.add_sample(each, 100.0, 100.0)
    record = one.record(at_s)
    measured = record.energy_j
    if measured is None:
        return
    assert measured.seconds <= at_s - START + 1e-3
    assert (record.energy_sampled_s or 0.0) <= measured.seconds + 1e-3
    # The power was never below 50 W or above 500 W.
    assert 50 * measured.seconds * 0.2 <= measured.total <= 500 * measured.seconds * 2 + 1
    if all(has_power for *_, has_power in steps) and measured.seconds == pytest.approx(at_s - START):
        assert measured.total == pytest.approx(drawn_j, rel=0.6)


# Links


def record_of_links(
    *, seconds: int = 5, util_pct: float | None = None, gpm: float | None = None, **rates: int
) -> Record:
    """Return the record of link counters that grow at the given rates in bytes per second."""

    def reading(second: int) -> DeviceSample:
        counters = {f"{name}_bytes": DeviceCounter(10**6 + rate * second) for name, rate in rates.items()}
        activity = None if gpm is None else Activity(1.0, pcie_rx_bytes_per_s=gpm, pcie_tx_bytes_per_s=gpm)
        return sample(START + second, util_pct=util_pct, activity=activity, **counters)

    return seen(*(reading(second) for second in range(seconds + 1)))


@pytest.mark.parametrize("link", ["pcie", "nvlink"])
@pytest.mark.parametrize("frozen", ["rx", "tx"])
def test_a_link_direction_that_never_grew_while_the_other_did_is_a_gap(link: str, frozen: str) -> None:
    other = "tx" if frozen == "rx" else "rx"
    record = record_of_links(**{f"{link}_{frozen}": 0, f"{link}_{other}": 10**9})
    assert getattr(record, f"{link}_{frozen}_bytes") is None
    assert getattr(record, f"{link}_{other}_bytes") == Total(5.0, 5 * 10**9)
    fractions = [fraction for fraction in timeline_of(record, link) if fraction is not None]
    whole = {"pcie": 32e9, "nvlink": 300e9}[link]
    assert fractions == pytest.approx([1e9 / whole] * len(fractions), abs=0.002)


def test_pcie_counters_that_never_grew_while_the_gpu_computed_are_gaps() -> None:
    record = record_of_links(util_pct=90.0, pcie_rx=0, pcie_tx=0)
    assert record.pcie_rx_bytes is None
    assert record.pcie_tx_bytes is None
    assert record.timeline is not None
    assert "pcie" not in record.timeline.series


def test_pcie_counters_of_an_idle_gpu_are_0() -> None:
    record = record_of_links(util_pct=0.0, pcie_rx=0, pcie_tx=0)
    assert record.pcie_rx_bytes == record.pcie_tx_bytes == Total(5.0, 0)


def test_nvlink_counters_of_a_gpu_without_traffic_are_0() -> None:
    record = record_of_links(util_pct=90.0, nvlink_rx=0, nvlink_tx=0)
    assert record.nvlink_rx_bytes == record.nvlink_tx_bytes == Total(5.0, 0)


def test_counters_that_grew_once_are_used() -> None:
    one = tally()
    for second in range(6):
        bytes_moved = DeviceCounter(min(second, 1) * 10**6)
        one.add_sample(
            sample(START + second, util_pct=90.0, pcie_rx_bytes=bytes_moved, pcie_tx_bytes=bytes_moved),
            GAP,
            GAP,
        )
    record = one.record(START + 5)
    assert record.pcie_rx_bytes == record.pcie_tx_bytes == Total(5.0, 10**6)


def test_gpm_replaces_counters_that_never_grew() -> None:
    record = record_of_links(util_pct=90.0, gpm=2e9, pcie_rx=0, pcie_tx=0)
    assert record.pcie_rx_bytes is not None
    assert record.pcie_rx_bytes.total == pytest.approx(2e9 * record.pcie_rx_bytes.seconds)
    with_counters = record_of_links(util_pct=90.0, gpm=2e9, pcie_rx=10**9, pcie_tx=10**9)
    assert with_counters.pcie_rx_bytes == Total(5.0, 5 * 10**9)
