"""Files in the run directory of slurm-gpuctld, which all users may read."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.errors import outside
from slurm_gpu.files.atomic import write_whole


def write_run_file(path: Path, text: str) -> None:
    """Replace a file that all may read; raise OutsideError.

    It is rewritten every few seconds and worthless after a power cut, so nothing waits for the disk.
    """
    with outside(path):
        write_whole(path, text, mode=0o644, durable=False)
