"""`slurm-gpu colocation train`: train a planner on a table of speeds, and write the model."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu.cli.output import remark
from slurm_gpu.cli.progress import progress_bar
from slurm_gpu.colocation.learned import job_array as jobarray
from slurm_gpu.colocation.learned.model_file import PlannerModel, write_model
from slurm_gpu.colocation.learned.models import read_for, write_if_better
from slurm_gpu.colocation.learned.net import Net
from slurm_gpu.colocation.registry import Setting
from slurm_gpu.colocation.research.workloads import table_world
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.world import World
from slurm_gpu.colocation.speeds.gaps import completed
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.read import read_table
from slurm_gpu.errors import InputError, OutsideError
from slurm_gpu.text.units import counted

if TYPE_CHECKING:  # torch is installed only where planners are trained
    from slurm_gpu.colocation.learned.training import Progress


@dataclass(frozen=True)
class SpeedTable:
    """A file of speeds, and the limits for sharing."""

    path: Path
    gpu_model: str | None
    together: int
    cap: float
    predict: bool = False
    """Whether speeds that the file lacks are predicted."""

    @cached_property
    def measured(self) -> Measured:
        """Return the speed of each pair; raise InputError if one is missing and is not predicted."""
        found = read_table(self.path, self.gpu_model)
        lacking = found.lacking
        if not lacking:
            return found
        n_pairs = len(found.names) ** 2
        if self.predict:
            remark(f"{counted(len(lacking), 'speed')} of {n_pairs} are not in {self.path}, and are predicted")
            return completed(found)
        one, other = lacking[0]
        and_more = f" (and {len(lacking) - 1} more of {n_pairs})" if len(lacking) > 1 else ""
        raise InputError(
            str(self.path),
            0,
            0,
            f"{found.gpu_model}: no speed of {found.names[one]!r} with {found.names[other]!r}"
            f"{and_more}; measure it, or predict it with --predict",
        )

    @cached_property
    def world(self) -> World:
        """Return the simulated applications and speeds of the table."""
        return table_world(self.measured)

    def setting(self, seed: int = 0, nets: Mapping[str, Net] | None = None) -> Setting:
        """Return a new setting without state from earlier plans."""
        belief = KnownBelief(self.world, most_together=self.together, cap=self.cap)
        return Setting(
            belief=belief,
            profiles=self.world.profiles,
            capacity_mib=self.world.capacity_mib,
            seed=seed,
            nets={} if nets is None else nets,
        )


def train_planner(
    known: SpeedTable,
    name: str,
    out: Path,
    seed: int,
    start: Path | None,
    checkpoint: Path | None,
    device: str,
    *,
    if_better: bool,
    now_s: float,
) -> None:
    """Train the planner, and write its model."""
    from slurm_gpu.colocation import trainer as trainer
    from slurm_gpu.colocation.learned.gradients import HERE
    from slurm_gpu.colocation.trainer import model_of, settings_of, teach

    if device != HERE:
        _check_device(device)
    for path in (out,) if checkpoint is None else (out, checkpoint):
        _check_folder(path)
    if name != "dqngpu":
        remark(f"{name} needs the GPU use over time, which a table of speeds does not contain")
    setting = known.setting(seed)
    if (n := len(setting.profiles)) > (most := trainer.MOST_APPLICATIONS):
        remark(f"the table has {n} applications: the planner is trained on {most} of them, drawn at random")
    net = None if start is None else read_for(start, name).net
    settings = replace(settings_of(name, seed=seed, again=net is not None), device=device)
    with _progress() as report_progress:
        trained = teach(
            name, setting, settings, start=net, checkpoint=checkpoint, report_progress=report_progress
        )
    data = {
        "file": known.path.name,
        "gpu_model": known.measured.gpu_model,
        "sha256": hashlib.sha256(known.path.read_bytes()).hexdigest(),
        "together": known.together,
        "cap": repr(known.cap),
    } | ({"predicted": True} if known.predict else {})
    model = model_of(name, trained, setting, settings, data, now_s)
    try:
        written = write_if_better(out, model) if if_better else _write(out, model)
    except OSError as error:
        raise OutsideError(f"{out}: cannot be written: {error.strerror}") from None
    click.echo(str(out))
    taught = "" if trained.taught_score is None else f", {trained.taught_score:.4f} after imitation"
    unit = (
        "makespan ÷ sum of unshared run times"
        if name == "dqngpu"
        else "time in the system ÷ unshared run time"
    )
    remark(
        f"{trained.epochs} epochs in {trained.seconds:.0f} s; {unit}: {trained.score:.4f}{taught}, "
        f"{trained.history[0][1]:.4f} before training"
    )
    if not written:
        remark("the existing model is at least as good, and is kept")


def _write(out: Path, model: PlannerModel) -> bool:
    write_model(out, model)
    return True


def _check_device(device: str) -> None:
    try:
        from slurm_gpu.colocation.learned.torch_gradients import checked_device
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OutsideError(
            f"--device {device}: needs torch, which no package includes: run pip install "
            "'/path/to/slurm-gpu[train]'; without --device, torch is not needed"
        ) from None
    checked_device(device)


def _check_folder(path: Path) -> None:
    """Check that the model can be written, before training starts."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutsideError(f"{path}: cannot be written: {path.parent} is not a writable directory")


def print_script(
    known: SpeedTable, name: str, out: Path, start: Path | None, device: str, n_seeds: int
) -> None:
    """Print a script for sbatch; its paths are absolute, because tasks run on other hosts."""
    _ = known.measured  # fail here for an invalid table, not in each task
    if start is not None:
        read_for(start, name)
    command = ["slurm-gpu", "colocation", "train", str(known.path.resolve()), "--planner", name]
    command += ["--together", str(known.together), "--device", device]
    command += [] if known.gpu_model is None else ["--gpu-model", known.gpu_model]
    command += ["--cap", str(known.cap)] if math.isfinite(known.cap) else []
    command += ["--predict"] if known.predict else []
    command += [] if start is None else ["--start", str(start.resolve())]
    click.echo(jobarray.script(command, out.resolve(), n_seeds), nl=False)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    with progress_bar() as bar:
        task = bar.add_task("begins", total=None)

        def print_progress(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.epoch,
                total=progress.of,
                refresh=True,
                description=f"{progress.stage}, best {progress.best:.4f}",
            )

        yield print_progress
