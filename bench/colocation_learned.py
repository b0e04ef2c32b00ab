"""Train the nets of learned planners for bench/colocation.py, once for each mode and kind of speeds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.colocation_runs import LEARNED_OURS, LEARNED_THEIRS, MODES, Place, net_path, setting_of
from slurm_gpu.colocation.learned.model_file import write_model


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """One training run to execute."""

    place: Place
    mode: str
    information: str
    planner: str
    folder: Path
    quick: bool
    """Whether this is a quick check, too short to learn much."""

    @property
    def path(self) -> Path:
        return net_path(self.folder, self.mode, self.information, self.planner)


def training_tasks(place: Place, planners: tuple[str, ...], folder: Path, quick: bool) -> list[TrainingTask]:
    """Return all training runs that these planners need, the longest first."""
    ours = [
        TrainingTask(place, mode, information, LEARNED_OURS, folder, quick)
        for mode in MODES
        for information in place.information
        if LEARNED_OURS in planners
    ]
    theirs = [
        TrainingTask(place, "throughput", "known", name, folder, quick)
        for name in LEARNED_THEIRS
        if name in planners
    ]
    return [*ours, *theirs]


def learn(lesson: TrainingTask) -> float:
    """Train, write the net to its file, and return the processor time in seconds."""
    from slurm_gpu.colocation.trainer import model_of, settings_of, teach

    setting = setting_of(lesson.place, lesson.mode, lesson.information, seed=0)
    settings = settings_of(lesson.planner, again=lesson.quick)
    trained = teach(lesson.planner, setting, settings)
    data = {"benchmark": lesson.place.world().profiles[0].gpu_model}
    write_model(lesson.path, model_of(lesson.planner, trained, setting, settings, data, time.time()))
    return trained.seconds
