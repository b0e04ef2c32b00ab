"""Page models of training runs with faults, for the tests of their page."""

from dataclasses import replace

from slurm_gpu.diagnose.case import DiagnosisThresholds, build_case
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel
from tests.diagnose.training import Training


def page_model(
    training: Training, title="Job 17 · train", about=("alice in vision",), **more
) -> DiagnosisPageModel:
    """Return a page model; the training's workers are GPUs of nodes, without ranks."""
    training.workers = tuple(
        replace(worker, rank=None, index=row % training.per_node)
        for row, worker in enumerate(training.workers)
    )
    series = training.series(**more)
    return DiagnosisPageModel(
        title=title,
        about=about,
        by="its whole timeline",
        coverage_text=", 100% coverage",
        case=build_case(series, None, DiagnosisThresholds(), running=True),
        verdict=diagnose(series),
        timezone="Asia/Seoul",
        made="version 0",
    )


def a_slow_gpu(**more) -> Training:
    """Return a training run in which GPU 5 of n2 is slow in the second half."""
    training = Training(**{"n": 16, "n_bins": 120, "width_s": 16.0} | more)
    training.clock[13, training.n_bins // 2 :] *= 0.8
    return training
