"""Build wheels with setuptools, but in a temporary directory instead of the checkout.

setuptools copies modules into `build/lib` and packs everything there, including modules that were deleted
from the checkout after an earlier build.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# setuptools also reads the configuration file that this variable names.
_VARIABLE = "DIST_EXTRA_CONFIG"


@contextlib.contextmanager
def outside_the_checkout() -> Iterator[None]:
    """Make setuptools write its build files to a temporary directory."""
    before = os.environ.get(_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="slurm-gpu-build-") as directory:
        file = Path(directory, "build.cfg")
        file.write_text(f"[build]\nbuild_base = {directory}/build\n[egg_info]\negg_base = {directory}\n")
        os.environ[_VARIABLE] = str(file)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before


def get_requires_for_build_wheel(*arguments: Any, **named: Any) -> list[str]:
    """Return the packages that a build needs."""
    with outside_the_checkout():
        return list(build_meta.get_requires_for_build_wheel(*arguments, **named))


def prepare_metadata_for_build_wheel(*arguments: Any, **named: Any) -> str:
    """Write the metadata of the wheel; return the name of their directory."""
    with outside_the_checkout():
        return str(build_meta.prepare_metadata_for_build_wheel(*arguments, **named))


def build_wheel(*arguments: Any, **named: Any) -> str:
    """Build the wheel; return its file name."""
    with outside_the_checkout():
        return str(build_meta.build_wheel(*arguments, **named))
