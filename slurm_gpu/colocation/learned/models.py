"""Read and write the models of all planners that learn, and keep the better of two models."""

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
    """Return the model of this planner in a file.

    Raise InputError if the file contains no such model, or if its net could output values that are not
    numbers.
    """
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
            f"its net has {widths[0]} inputs and {widths[-1]} outputs; the net of planner {name} has "
            f"{n_inputs} and {n_outputs}",
        )
    most = _LARGEST_INPUT
    for weight, bias in zip(model.net.weights, model.net.biases, strict=True):
        most = float((np.abs(weight, dtype=np.float64).sum(axis=0) * most + np.abs(bias)).max(initial=0))
    if most > float(np.finfo(np.float32).max):
        raise InputError(
            str(path), 0, 0, "the weights of its net are too large: its output is not always a number"
        )
    return model


def read_any(path: Path) -> PlannerModel:
    """Return the model in a file, whichever planner uses it; raise InputError if there is none."""
    for name in LEARNED_PLANNERS:
        try:
            return read_for(path, name)
        except InputError as error:
            if "is a model for planner" not in str(error):
                raise
    raise InputError(
        str(path), 0, 0, f"is a model for an unknown planner; known planners: {', '.join(LEARNED_PLANNERS)}"
    )


def write_if_better(path: Path, model: PlannerModel) -> bool:
    """Write a model unless the existing one is at least as good; return whether it was written.

    An existing model is kept only if it was trained on the same data. A model of another version, or a
    damaged one, is replaced. Several processes may call this function at once. Raise OSError if writing
    fails.
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
