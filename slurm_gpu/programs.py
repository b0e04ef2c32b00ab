"""Provide the programs' entry points, which report the package to install if a library is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import NamedTuple


class Program(NamedTuple):
    """A command, and the package and the pip extra that install its libraries.

    `needs` are the modules that the command requires; they are checked first because threads import some of
    them later.
    """

    command: str
    package: str
    extra: str
    needs: tuple[str, ...] = ()


# Programs by the subpackage of slurm_gpu that contains their main().
PROGRAMS = {
    "cli": Program("slurm-gpu", "slurm-gpu-client", "client"),
    "controller": Program("slurm-gpuctld", "slurm-gpu-controller", "controller", ("httpx", "msgspec")),
    "database": Program(
        "slurm-gpudbd",
        "slurm-gpu-db",
        "db",
        ("alembic", "httptools", "msgspec", "numpy", "sqlalchemy", "starlette", "uvicorn"),
    ),
    "monitor": Program(
        "slurm-gpuweb", "slurm-gpu-web", "web", ("httptools", "httpx", "msgspec", "starlette", "uvicorn")
    ),
    "node": Program("slurm-gpud", "slurm-gpu-node", "node"),
}


def start(part: str) -> int:
    """Run a program's main() and return its exit code, or 3 if a library is missing."""
    program = PROGRAMS[part]
    try:
        missing = next((name for name in program.needs if importlib.util.find_spec(name) is None), None)
        if missing is None:
            return int(importlib.import_module(f"slurm_gpu.{part}.main").main())
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "slurm_gpu"):
            raise
    print(
        f"{program.command}: the Python module {missing} is not installed; "
        f"install the package {program.package} (or: pip install 'slurm-gpu[{program.extra}]')",
        file=sys.stderr,
    )
    return 3


def slurm_gpu() -> int:
    """Run `slurm-gpu`."""
    return start("cli")


def slurm_gpuctld() -> int:
    """Run `slurm-gpuctld`."""
    return start("controller")


def slurm_gpud() -> int:
    """Run `slurm-gpud`."""
    return start("node")


def slurm_gpudbd() -> int:
    """Run `slurm-gpudbd`."""
    return start("database")


def slurm_gpuweb() -> int:
    """Run `slurm-gpuweb`."""
    return start("monitor")
