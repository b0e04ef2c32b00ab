"""Read and write the models of all planners that learn, and keep the better of two."""

from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.learned.images import LEVELS, N_INPUTS, RESOURCES, SLOTS, STEPS, options_of
from slurm_gpu.colocation.learned.model_file import PlannerModel, read_model, write_model
from slurm_gpu.colocation.learned.rows import NAMES
from slurm_gpu.errors import InputError

# Maximum absolute value of an input: inputs of nets are bits, or ratios of times in a queue.
_LARGEST_INPUT = 1e6


def inputs_of(name: str) -> tuple[str, ...]:
    """Return the input names of a planner in LEARNED_PLANNERS."""
    if name == "dqngpu":
        return NAMES
    return (f"{SLOTS} slots", f"{STEPS} steps", f"{LEVELS} levels", *RESOURCES)


def read_for(path: Path, name: str) -> PlannerModel:
    """Return a model of this planner whose net evaluates to numbers; raise InputError if there is none."""
    model = read_model(path, name, inputs_of(name))
    if name == "dqngpu":
        n_inputs, n_outputs = len(NAMES), 1
    else:
        n_inputs, n_outputs = N_INPUTS, len(options_of(name))
    widths = model.net.widths
    if (widths[0], widths[-1]) != (n_inputs, n_outputs):
        raise InputError(
            str(path),
            0,
            0,
            f"its net has {widths[0]} inputs and {widths[-1]} outputs; that of planner {name} has {n_inputs} "
            f"and {n_outputs}",
        )
    most = _LARGEST_INPUT
    for weight, bias in zip(model.net.weights, model.net.biases, strict=True):
        most = float((np.abs(weight, dtype=np.float64).sum(axis=0) * most + np.abs(bias)).max(initial=0))
    if most > float(np.finfo(np.float32).max):
        raise InputError(
            str(path), 0, 0, "its net has weights that are too large: the output is not a number"
        )
    return model


def read_any(path: Path) -> PlannerModel:
    """Return a model of any planner that learns; raise InputError if the file has none."""
    for name in LEARNED_PLANNERS:
        try:
            return read_for(path, name)
        except InputError as error:
            if "is a model for planner" not in str(error):
                raise
    raise InputError(str(path), 0, 0, f"is a model for an unknown planner: {', '.join(LEARNED_PLANNERS)}")


def write_if_better(path: Path, model: PlannerModel) -> bool:
    """Write a model unless the existing one is at least as good; return whether it was written.

    Only an existing model that was trained on the same data is compared; one of another version, or a damaged
    one, is replaced. Several processes may call this at once. Raise OSError if writing fails.
    """
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_better = not path.exists() or not _is_as_good(path, model)
        if is_better:
            write_model(path, model)
        return is_better


def _is_as_good(path: Path, model: PlannerModel) -> bool:
    try:
        there = read_for(path, model.kind)
    except InputError:
        return False
    score = there.provenance.get("score")
    of_same = there.provenance.get("data") == model.provenance["data"]
    return of_same and isinstance(score, int | float) and score <= model.provenance["score"]
