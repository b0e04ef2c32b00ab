"""Starts the programs; one of which a library is not installed says which package brings it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import NamedTuple


class Program(NamedTuple):
    """A command, the package and the extra of an installation by hand that bring its libraries."""

    command: str
    package: str
    extra: str
    needs: tuple[str, ...] = ()
    """Modules without which it does not start; some are imported later, in threads."""


# By the part of slurm_gpu that has its main().
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
    """Run a program's main(); returns its exit code, 3 where a library is missing."""
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
        f"{program.command}: needs the Python module {missing}, which is not installed here: "
        f"the package {program.package} brings it (by hand: pip install 'slurm-gpu[{program.extra}]')",
        file=sys.stderr,
    )
    return 3


def slurm_gpu() -> int:
    """`slurm-gpu`."""
    return start("cli")


def slurm_gpuctld() -> int:
    """`slurm-gpuctld`."""
    return start("controller")


def slurm_gpud() -> int:
    """`slurm-gpud`."""
    return start("node")


def slurm_gpudbd() -> int:
    """`slurm-gpudbd`."""
    return start("database")


def slurm_gpuweb() -> int:
    """`slurm-gpuweb`."""
    return start("monitor")
