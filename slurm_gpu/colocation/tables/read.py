"""Read files of measured speeds in any supported format."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_gpu.colocation.tables import gavel
from slurm_gpu.colocation.tables import pair_file as pairfile
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.strict_json import mapping, read_json
from slurm_gpu.errors import InputError

_BATCH = re.compile(r"(?P<application>.*\S)\s*\(batch size (?P<size>\d{1,9})\)")


def read_tables(path: Path) -> tuple[Measured, ...]:
    """Return one table per GPU model from a file in the project's CSV or JSON format, or in Gavel's format.

    Gavel's tables are read for jobs of one GPU. Raise InputError with the key or line and the value if the
    file is invalid.
    """
    if path.suffix.lower() == ".csv":
        return pairfile.tables_of_csv(path)
    decoded = mapping(path, "the file", read_json(path), "a JSON object")
    if "format" in decoded:
        return (pairfile.table_of_json(path, decoded),)
    return gavel.tables_of(path, decoded)


def read_table(path: Path, gpu_model: str | None = None) -> Measured:
    """Read the table of the given GPU model, or of the only model in the file."""
    tables = read_tables(path)
    if gpu_model is None and len(tables) == 1:
        return tables[0]
    for table in tables:
        if table.gpu_model == gpu_model:
            return table
    if not tables:
        raise InputError(str(path), 0, 0, "has no speeds; docs/colocation.md describes the format")
    there = ", ".join(table.gpu_model for table in tables)
    wanted = (
        "select one GPU model with --gpu-model" if gpu_model is None else f"has no GPU model {gpu_model!r}"
    )
    raise InputError(str(path), 0, 0, f"{wanted}; available: {there}")


def application_and_size(name: str) -> tuple[str, float | None]:
    """Return the parts of a name such as "ResNet-18 (batch size 16)"; the size is None if it is missing."""
    found = _BATCH.fullmatch(name)
    return (found["application"], float(found["size"])) if found else (name, None)
