"""Read CSV files after checking bounds on their size."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from slurm_gpu.colocation.tables.strict_json import MOST_BYTES
from slurm_gpu.errors import InputError
from slurm_gpu.files.bounded_read import read_text, refuse_many_values


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return each row of a file with the number of its last line; raise InputError if the file is invalid."""
    return rows_of(read_text(path, MOST_BYTES, "utf-8-sig"), path)


def rows_of(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a text; `path` appears only in messages."""
    refuse_many_values(path, text, ",\n")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputError(str(path), reader.line_num, 1, f"is not CSV: {error}") from None
