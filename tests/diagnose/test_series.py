"""Timelines, windows and host values are aligned to one grid."""

import numpy as np
import pytest

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import (
    MAX_BINS,
    HostSeries,
    JobWorker,
    WorkerSeries,
    align,
    worker_series_of_timeline,
    worker_series_of_windows,
)
from slurm_gpu.wire import DeviceFacts, Timeline, Window
from slurm_gpu.wire.window import pack

ONE = JobWorker(node="n1", device="GPU-1", rank=0)
TWO = JobWorker(node="n2", device="GPU-2", rank=1)


def a_course(worker, values, start_s=1000.0, width_s=1.0, metric=Metric.POWER):
    return WorkerSeries(
        worker=worker, start_s=start_s, width_s=width_s, values={metric: np.array(values, dtype=np.float64)}
    )


def test_a_timelines_bytes_become_fractions_and_gaps():
    timeline = Timeline(width_s=4, start_s=1000, series={"power": bytes([0, 125, 250, 255])})
    course = worker_series_of_timeline(ONE, timeline)
    assert course.values[Metric.POWER][:3].tolist() == [0.0, 0.5, 1.0]
    assert np.isnan(course.values[Metric.POWER][3])


def test_a_window_is_scaled_by_what_the_device_is():
    window = Window(
        job_id=1,
        segment="a" * 16,
        device="GPU-1",
        start_s=1000.0,
        width_s=1.0,
        series={
            "util_pct": pack([50, None]),
            "power_w": pack([350, 0]),
            "nvlink_rx_bytes_per_s": pack([1e9, 1e9]),
            "nvlink_tx_bytes_per_s": pack([3e9, None]),
            "throttle.sw_power_cap": pack([1, 1]),
            "throttle.hw_thermal_slowdown": pack([0.25, 0]),
            "throttle.hw_slowdown": pack([0.5, 0]),
        },
    )
    facts = DeviceFacts(uuid="GPU-1", node="n1", at_s=1, power_limit_w=700, nvlink_bytes_per_s=4e9)
    (course,) = worker_series_of_windows([(ONE, window)], {"GPU-1": facts})
    assert course.values[Metric.UTIL][0] == 0.5
    assert np.isnan(course.values[Metric.UTIL][1])
    assert course.values[Metric.POWER].tolist() == [0.5, 0.0]
    assert course.values[Metric.NVLINK][0] == 0.5
    assert np.isnan(course.values[Metric.NVLINK][1])
    assert course.values[Metric.THROTTLE].tolist() == [0.5, 0.0]  # a power cap is not a fault


def test_a_gpu_without_the_series_of_a_throttle_was_never_throttled():
    def window(worker, **series):
        return worker, Window(
            job_id=1, segment="a" * 16, device=worker.device, start_s=0.0, width_s=1.0, series=series
        )

    hot = {"power_w": pack([300.0] * 3), "throttle.hw_thermal_slowdown": pack([None, 0.5, 1.0])}
    one, two = worker_series_of_windows([window(ONE, **hot), window(TWO, power_w=pack([300.0, None, 300.0]))])
    assert one.values[Metric.THROTTLE].tolist() == [0.0, 0.5, 1.0]
    assert two.values[Metric.THROTTLE][[0, 2]].tolist() == [0.0, 0.0]
    assert np.isnan(two.values[Metric.THROTTLE][1])
    (alone,) = worker_series_of_windows([window(ONE, power_w=pack([300.0]))])
    assert Metric.THROTTLE not in alone.values  # no throttles are reported


def test_without_device_facts_fractions_use_the_maximum_of_the_job():
    windows = [
        (worker, Window(job_id=1, segment="a" * 16, device=worker.device, start_s=0.0, width_s=1.0, series=s))
        for worker, s in ((ONE, {"power_w": pack([400.0])}), (TWO, {"power_w": pack([200.0])}))
    ]
    one, two = worker_series_of_windows(windows)
    assert (one.values[Metric.POWER][0], two.values[Metric.POWER][0]) == (1.0, 0.5)


def test_bins_of_different_widths_meet_on_the_wider_grid():
    series = align([a_course(ONE, [0.2, 0.4, np.nan, 0.8]), a_course(TWO, [0.5, 0.7], width_s=2.0)])
    assert (series.width_s, series.start_s, series.n_bins) == (2.0, 1000.0, 2)
    assert series.values[Metric.POWER][0] == pytest.approx([0.3, 0.8])
    assert series.values[Metric.POWER][1] == pytest.approx([0.5, 0.7])


def test_missing_data_is_a_gap_and_never_zero():
    series = align([a_course(ONE, [0.5, 0.5]), a_course(ONE, [0.7], start_s=1004.0)], missing=[TWO])
    assert np.isnan(series.values[Metric.POWER][0, 2:4]).all()
    assert series.values[Metric.POWER][0, 4] == 0.7
    assert np.isnan(series.values[Metric.POWER][1]).all()
    assert series.coverage().tolist() == [pytest.approx(3 / 5), 0.0]


def test_hosts_values_are_those_of_each_of_its_workers():
    other = JobWorker(node="n1", device="GPU-9", rank=2)
    host = HostSeries(node="n1", start_s=1000.0, width_s=2.0, values={Metric.CPU: np.array([0.25])})
    series = align(
        [a_course(worker, [0.5, 0.5]) for worker in (ONE, TWO, other)],
        hosts=[host],
    )
    assert series.values[Metric.CPU][[0, 2]].tolist() == [[0.25, 0.25], [0.25, 0.25]]
    assert np.isnan(series.values[Metric.CPU][1]).all()


def test_workers_are_in_the_order_of_their_ranks():
    assert [w.rank for w in align([a_course(TWO, [1]), a_course(ONE, [1])]).workers] == [0, 1]


def test_a_grid_has_a_bound():
    series = align([a_course(ONE, [0.5]), a_course(TWO, [0.5], start_s=1000.0 + 10 * MAX_BINS)])
    assert series.n_bins <= MAX_BINS


def test_no_data_at_all_is_a_series_without_bins():
    series = align([], missing=[ONE])
    assert (series.n_bins, series.coverage().tolist()) == (0, [0.0])


def test_series_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        WorkerSeries(
            worker=ONE,
            start_s=0,
            width_s=1,
            values={Metric.POWER: np.zeros(2), Metric.UTIL: np.zeros(3)},
        )
