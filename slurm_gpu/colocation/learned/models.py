"""Models of all planners that learn: what each sees, and which of two is kept."""

from __future__ import annotations

import fcntl
from pathlib import Path

from slurm_gpu.colocation.learned.images import LEVELS, RESOURCES, SLOTS, STEPS
from slurm_gpu.colocation.learned.modelfile import Model, read_model, write_model
from slurm_gpu.colocation.learned.rows import NAMES
from slurm_gpu.colocation.planners import LEARNED
from slurm_gpu.errors import InputError


def inputs_of(name: str) -> tuple[str, ...]:
    """What the net of a planner in LEARNED sees."""
    if name == "dqngpu":
        return NAMES
    return (f"{SLOTS} slots", f"{STEPS} steps", f"{LEVELS} levels", *RESOURCES)


def read_any(path: Path) -> Model:
    """A model of whichever planner. Raises InputError."""
    for name in LEARNED:
        try:
            return read_model(path, name, inputs_of(name))
        except InputError as error:
            if "is a model for planner" not in str(error):
                raise
    raise InputError(str(path), 0, 0, f"is a model for no planner that there is: {', '.join(LEARNED)}")


def write_if_better(path: Path, model: Model) -> bool:
    """Unless the model that is there was trained on the same and is as good; whether it was written.

    Several processes may do this at once. Raises InputError where the file that is there is no model, and
    OSError.
    """
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            there = read_any(path)
            of_same = there.kind == model.kind and there.provenance.get("data") == model.provenance["data"]
            score = there.provenance.get("score")
            if of_same and isinstance(score, int | float) and score <= model.provenance["score"]:
                return False
        write_model(path, model)
        return True
