"""Jobs for `slurm-gpu diagnose` with timelines and windows in the Database."""

import numpy as np
from msgspec import structs

from slurm_gpu.client.database_client import DeviceTimeline, NodeWindow, RunTimeline
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.wire import DeviceFacts, Timeline
from slurm_gpu.wire.window import pack
from tests.cli.conftest import START_S, CommandLine, make_record, make_run
from tests.diagnose.training import Training
from tests.slurm.recorded import NOW_S

BEGINS_S = START_S // 16 * 16


def add_job(slurm_gpu: CommandLine, training: Training, **records):
    """Add a run on the GPUs of this training run, with timelines of their activity in bins of 16 s."""
    values = training.values()
    slurm_gpu.database.runs = [
        make_run(
            devices=tuple(make_record(w.device, node=w.node, **records) for w in training.workers),
            device_facts={
                w.device: DeviceFacts(uuid=w.device, node=w.node, at_s=1, index=i % training.per_node)
                for i, w in enumerate(training.workers)
            },
        )
    ]
    devices = tuple(
        DeviceTimeline(
            node=w.node,
            device=w.device,
            timeline=Timeline(
                width_s=16,
                start_s=BEGINS_S,
                series={
                    metric.value: bytes(np.round(matrix[row] * 250).astype(np.uint8))
                    for metric, matrix in values.items()
                    if metric is not Metric.THROTTLE
                },
            ),
        )
        for row, w in enumerate(training.workers)
    )
    run = slurm_gpu.database.runs[0]
    slurm_gpu.database.run_timelines = [
        RunTimeline(id=run.id, job_id=run.job_id, submit_s=run.submit_s, devices=devices)
    ]


def windows_of_a_throttled_gpu() -> list[NodeWindow]:
    """Return windows of ten minutes in which GPU 5 of n1 is throttled."""
    training = Training()
    training.clock[5] *= 0.85
    training.throttle[5] = 0.7
    return windows_of(training)


def windows_of(training: Training) -> list[NodeWindow]:
    values = training.values()
    names = {
        Metric.UTIL: ("util_pct", 100.0),
        Metric.SM_ACTIVE: ("sm_active_frac", 1.0),
        Metric.TENSOR: ("tensor_frac", 1.0),
        Metric.POWER: ("power_w", 700.0),
        Metric.SM_CLOCK: ("sm_clock_mhz", 1980.0),
        Metric.THROTTLE: ("throttle.hw_thermal_slowdown", 1.0),
    }
    return [
        NodeWindow(
            node=w.node,
            at_s=BEGINS_S + 600,
            job_id=17,
            segment="0" * 16,
            device=w.device,
            start_s=float(BEGINS_S),
            width_s=1.0,
            series={name: pack(values[m][row] * scale) for m, (name, scale) in names.items()},
        )
        for row, w in enumerate(training.workers)
    ]


def add_running_job(slurm_gpu: CommandLine, first_after: float, all_after: float) -> None:
    """Add a running job whose windows arrive after some seconds: those of n1 first, then all of them."""
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0), final=False)
    slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
    slurm_gpu.database.window_list = windows_of_a_throttled_gpu()
    passed = [0.0]

    def arrived(windows: list[NodeWindow]) -> list[NodeWindow]:
        some = [item for item in windows if item.node == "n1"] if passed[0] >= first_after else []
        return windows if passed[0] >= all_after else some

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    slurm_gpu.database.windows_of = arrived
    slurm_gpu.site.sleep, slurm_gpu.site.wall = sleep, lambda: NOW_S + passed[0]
