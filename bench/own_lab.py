"""Run a lab for a benchmark: Slurm and slurm-gpuctld, without services that would use processor time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from lab.options import Options


@contextlib.contextmanager
def own_lab(**more: Any) -> Iterator[tuple[Lab, Path]]:
    """Yield a new lab and a directory for output, and remove both afterwards; an existing lab is an error.

    `more` are further Options.
    """
    lab = Lab(options=Options(services=False, native_limits=False, controller=True, **more))
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    with tempfile.TemporaryDirectory(prefix="slurm-gpu-bench-") as directory:
        try:
            lab.up()
            yield lab, Path(directory)
        finally:
            lab.down()
