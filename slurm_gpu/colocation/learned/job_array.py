"""Train as a Slurm job array with one seed per task, and keep the best net of all tasks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_NAME = "colocation-train"


def script(command: Sequence[str], out: Path, n_seeds: int, *, minutes: int = 30) -> str:
    """Return an sbatch script that runs `command` with --seed, --checkpoint and --out added.

    Each task has its own checkpoint, from which it resumes when requeued. The tasks of a later array, which
    may train on other speeds, start from the beginning. `--if-better` keeps the best model in `out`,
    regardless of which task ends last.
    """
    if n_seeds < 1:
        raise ValueError(f"the number of seeds must be 1 or more, not {n_seeds}")
    checkpoint = f"{shlex.quote(str(out))}.$SLURM_ARRAY_JOB_ID.seed$SLURM_ARRAY_TASK_ID"
    call = f"{shlex.join(command)} --seed $SLURM_ARRAY_TASK_ID --checkpoint {checkpoint}"
    return f"""#!/bin/sh
#SBATCH --job-name={_NAME}
#SBATCH --array=0-{n_seeds - 1}
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time={minutes}
#SBATCH --requeue
#SBATCH --output={_NAME}-%A_%a.log
set -eu
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
{call} --out {shlex.quote(str(out))} --if-better
rm -f {checkpoint}
"""
