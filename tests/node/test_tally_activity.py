"""Activity, throttling and suspension in a record, including on shared devices."""

import pytest

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter
from slurm_gpu.node.measure.tally import DeviceSample
from slurm_gpu.wire import Mean, Total
from tests.node.samples import GAP, mean, sample, seen, tally


def test_activity_counts_for_its_own_seconds() -> None:
    record = seen(
        sample(1000.0),
        sample(1001.0, activity=Activity(seconds=0.5, sm_active=0.8, sm_occupancy=0.4, dram=0.0)),
        sample(1002.0, activity=Activity(seconds=1.0, sm_active=0.2, sm_occupancy=0.1, dram=0.0)),
    )
    assert record.sm_active_frac == Mean(1.5, pytest.approx(0.4), 0.2, 0.8)
    assert record.sm_occupancy_frac == Mean(1.5, pytest.approx(0.2), 0.1, 0.4)
    assert record.dram_frac == Mean(1.5, 0.0, 0.0, 0.0)
    assert record.tensor_frac is None


def test_activity_around_a_job_on_a_free_device_belongs_to_the_job() -> None:
    one = tally()
    one.free_since(900.0)
    # Nine of the ten seconds were before the job; the job is always busy.
    one.add_sample(sample(1001.0, activity=Activity(seconds=10.0, sm_active=0.05)), GAP, GAP)
    one.end_s = 1001.5
    one.add_sample(sample(1002.0, activity=Activity(seconds=1.0, sm_active=0.5)), GAP, GAP)
    sm_active = one.record(1002.0).sm_active_frac
    assert sm_active is not None
    assert (sm_active.seconds, sm_active.mean) == (1.5, pytest.approx((0.5 * 1.0 + 1.0 * 0.5) / 1.5))


def test_earlier_activity_of_stray_processes_is_not_a_full_gpu() -> None:
    one = tally()
    one.free_since(900.0)
    one.add_sample(sample(1000.005, activity=Activity(seconds=10.0, sm_active=0.001)), GAP, GAP)
    one.add_sample(sample(1001.005, activity=Activity(seconds=1.0, sm_active=0.0)), GAP, GAP)
    sm_active = one.record(1001.005).sm_active_frac
    assert sm_active is not None
    assert sm_active.max == 0.0


def test_activity_shared_with_others_counts_for_no_job() -> None:
    def active(at_s: float, seconds: float, *, alone: bool = True) -> DeviceSample:
        return sample(at_s, alone=alone, activity=Activity(seconds=seconds, sm_active=0.5))

    # The first sample began before the job, the third while another job was present.
    record = seen(active(1000.5, 60.0), active(1001.5, 1.0), active(1002.0, 0.5, alone=False))
    assert record.sm_active_frac == Mean(1.0, 0.5, 0.5, 0.5)
    record = seen(sample(1001.0), sample(1001.05, alone=False), active(1001.2, 0.2), active(1002.2, 1.0))
    assert record.sm_active_frac == Mean(1.0, 0.5, 0.5, 0.5)


def test_activity_may_be_sampled_less_often_than_other_values() -> None:
    record = seen(
        sample(1000.06), sample(1000.12, activity=Activity(seconds=0.12, tensor=0.5)), sample(1000.18)
    )
    assert record.tensor_frac == Mean(0.12, 0.5, 0.5, 0.5)


def test_a_throttle_reason_that_changes_between_samples_counts_half_the_time() -> None:
    record = seen(
        sample(1000.5, throttle=()),
        sample(1001.0, throttle=()),
        sample(1002.0, throttle=("sw_power_cap",)),
        sample(1003.0, throttle=("sw_power_cap", "hw_thermal_slowdown")),
        sample(1004.0, throttle=()),
        sample(1005.0, throttle=None),
        sample(1006.0, throttle=("sw_power_cap",)),
    )
    assert record.throttle_s == {"sw_power_cap": 0.5 + 1 + 0.5 + 0.5, "hw_thermal_slowdown": 1.0}


def test_suspended_time_is_a_gap_until_it_is_known() -> None:
    one = tally()
    assert one.record(1001.0).suspended_s is None
    one.suspension(1002.0, suspended=False)
    assert one.record(1002.0).suspended_s == 0.0
    one.suspension(1004.0, suspended=True)
    assert one.record(1005.0).suspended_s == 1.0
    one.suspension(1006.0, suspended=False)
    one.suspension(1008.0, suspended=True)
    one.end_s = 1009.0
    assert one.record(1010.0).suspended_s == 3.0


def test_a_job_suspended_at_its_first_sample_is_suspended_from_the_start() -> None:
    one = tally()
    one.suspension(1002.0, suspended=True)
    assert one.record(1003.0).suspended_s == 3.0


def test_a_suspended_job_is_not_idle_and_keeps_its_memory() -> None:
    one = tally()
    one.suspension(1000.0, suspended=False)
    one.add_sample(sample(1000.0, processes=2), 2.0, 5.0)
    for second in range(1, 11):
        one.add_sample(sample(1000.0 + second, processes=0 if second > 6 else 2), 2.0, 5.0)
        one.utilization(999.0 + second, 1000.0 + second, 0.0 if second > 6 else 80.0, 0.0)
        if second == 6:
            one.suspension(1006.0, suspended=True)
    record = one.record(1010.0)
    assert record.util_hist_ms == {80: 6000}
    assert record.sampled_s == 6.0
    assert record.suspended_s == 4.0
    assert record.no_process_s == 0.0
    assert record.mem_used_mib is not None
    assert record.mem_used_mib.seconds == 10.0


# Shared devices


def test_counters_of_a_shared_device_count_for_no_job_but_its_conditions_for_all() -> None:
    def reading(second: int, *, alone: bool) -> DeviceSample:
        return sample(
            1000.0 + second,
            alone=alone,
            power_w=100.0,
            temp_c=50.0,
            sm_clock_mhz=1500.0,
            mem_util_pct=30.0,
            energy_mj=DeviceCounter(100_000 * second),
            pcie_rx_bytes=DeviceCounter(1000 * second),
            nvlink_tx_bytes=DeviceCounter(1000 * second),
            ecc_uncorrected=DeviceCounter(second),
            throttle=("sw_power_cap",),
            activity=Activity(seconds=1.0, sm_active=0.5),
        )

    record = seen(*(reading(second, alone=False) for second in range(4)))
    own = ("power_w", "mem_util_pct", "sm_active_frac", "energy_j", "pcie_rx_bytes", "nvlink_tx_bytes")
    for name in (*own, "ecc_uncorrected"):
        assert getattr(record, name) is None, name
    assert record.temp_c == Mean(3.0, 50.0, 50.0, 50.0)
    assert record.sm_clock_mhz == Mean(3.0, 1500.0, 1500.0, 1500.0)
    assert record.throttle_s == {"sw_power_cap": 3.0}
    assert record.timeline is not None
    assert set(record.timeline.series) == {"mem_used", "sm_clock"}

    # The other job ended between two samples.
    record = seen(*(reading(second, alone=second > 2) for second in range(5)))
    assert record.energy_j == Total(2.0, 200.0)
    assert record.ecc_uncorrected == Total(2.0, 2)
    assert mean(record.power_w) == 100.0
