"""Write files that all users may read to the run directory of slurm-gpuctld."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.errors import outside
from slurm_gpu.files.atomic import write_whole


def write_run_file(path: Path, text: str) -> None:
    """Replace a file that all users may read; raise OutsideError on failure.

    The file is rewritten every few seconds and is useless after a power failure, so it is not flushed to
    disk.
    """
    with outside(path):
        write_whole(path, text, mode=0o644, durable=False)
