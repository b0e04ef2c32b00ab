"""Training as a Slurm job array: one seed per task, of which the best net is kept."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_NAME = "colocation-train"


def script(command: Sequence[str], out: Path, n_seeds: int, *, minutes: int = 30) -> str:
    """Return a script for sbatch that runs `command` (its options except --seed, --checkpoint and --out).

    Each task has its own checkpoint, so a requeued task resumes from it. A task of the next array, which may
    have other speeds, starts from the beginning. `--if-better` keeps the best model in `out`, regardless of
    the order in which tasks end.
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
