"""Training as a Slurm job array: a seed for each task, and the best one's net wins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_NAME = "colocation-train"


def script(command: Sequence[str], out: Path, n_seeds: int, *, minutes: int = 30) -> str:
    """A script for sbatch, which runs `command` (its options but --seed, --checkpoint and --out).

    Each task has a checkpoint of its own, so that one that is requeued goes on where it was, and one of the
    next array, which may be of other speeds, begins anew; `--if-better`
    leaves the best model in `out`, whichever task ends last.
    """
    if n_seeds < 1:
        raise ValueError(f"there must be one seed or more, not {n_seeds}")
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
