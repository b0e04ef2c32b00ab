"""Find the directory that contains the package slurm_gpu: the root of a checkout, or site-packages."""

from pathlib import Path

import slurm_gpu

SOURCE_ROOT = Path(slurm_gpu.__file__).resolve().parent.parent
