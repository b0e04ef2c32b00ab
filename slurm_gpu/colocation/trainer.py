"""Train a planner, given by name, on assumptions about some applications.

Only this module creates models that are written to files.
"""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu import __version__
from slurm_gpu.colocation.learned.co_runners import ApplicationPlaces
from slurm_gpu.colocation.learned.deeprm import ImageMethod
from slurm_gpu.colocation.learned.dqngpu import GroupMethod
from slurm_gpu.colocation.learned.gradients import HERE
from slurm_gpu.colocation.learned.model_file import PlannerModel
from slurm_gpu.colocation.learned.models import inputs_of
from slurm_gpu.colocation.learned.net import Net
from slurm_gpu.colocation.learned.training import Method, Progress, TrainedNet, TrainingSettings, train
from slurm_gpu.colocation.registry import Setting

# Maximum number of applications for training; more are sampled at random, since training does not depend on
# individual applications.
MOST_APPLICATIONS = 48


def settings_of(name: str, *, seed: int = 0, again: bool = False) -> TrainingSettings:
    """Return training settings for a planner; with `again`, return those for retraining a net on new data."""
    if name == "dqngpu":
        settings = TrainingSettings(seed=seed)
    else:
        settings = TrainingSettings(seed=seed, queues=8, plays=8, judged_queues=32, rate=1e-3, last_rate=1e-4)
    return replace(settings, epochs=4, queues=8, judged_queues=32, rate=3e-4) if again else settings


def teach(
    name: str,
    setting: Setting,
    settings: TrainingSettings,
    *,
    start: Net | None = None,
    checkpoint: Path | None = None,
    report_progress: Callable[[Progress], None] = lambda _: None,
) -> TrainedNet:
    """Train a planner, given by name; `setting` contains the assumptions about the applications.

    See training.train.
    """
    n = len(setting.profiles)
    drawn = np.random.default_rng([n]).permutation(n)[:MOST_APPLICATIONS]
    chosen = sorted(int(one) for one in drawn)
    beliefs = ApplicationPlaces(setting.belief, setting.profiles, setting.capacity_mib, room=len(chosen))
    beliefs.place(chosen)
    method: Method = GroupMethod() if name == "dqngpu" else ImageMethod(name, setting.capacity_mib)
    return train(
        method, beliefs, settings, start=start, checkpoint=checkpoint, report_progress=report_progress
    )


def model_of(
    name: str,
    trained: TrainedNet,
    setting: Setting,
    settings: TrainingSettings,
    data: Mapping[str, Any],
    now_s: float,
) -> PlannerModel:
    """Return the model to write; `data` describes the training data."""
    belief = setting.belief
    provenance = {
        "data": dict(data),
        "applications": len(setting.profiles),
        "most_together": belief.most_together,
        "cap": belief.cap if np.isfinite(belief.cap) else None,
        "settings": asdict(settings),
        "score": trained.score,
        "score_after_imitation": trained.taught_score,
        "epochs": trained.epochs,
        "seconds": round(trained.seconds, 1),
        "date": dt.datetime.fromtimestamp(now_s, dt.UTC).isoformat(timespec="seconds"),
        "versions": {
            "slurm_gpu": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        | ({} if settings.device == HERE else {"torch": version("torch")}),
    }
    return PlannerModel(name, inputs_of(name), trained.net, provenance)
