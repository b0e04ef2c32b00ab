"""Write tables as files: CSV for spreadsheets, Parquet for programs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from slurm_gpu.files.atomic import whole_file
from slurm_gpu.reports.category import UNKNOWN, Category
from slurm_gpu.reports.figure import FigureTable, Values
from slurm_gpu.text.spreadsheet import defused

_SURROGATES = re.compile("[\ud800-\udfff]")


def write_csv(table: FigureTable, path: Path) -> None:
    """Write CSV in UTF-8 with a header; raise OSError on failure.

    Missing values are empty. Texts that spreadsheets would treat as formulas are escaped with an apostrophe.
    """
    columns = {name: _column(values, defuse=True) for name, values in table.data.items()}
    with whole_file(path) as unfinished:
        pyarrow.csv.write_csv(pa.table(columns), unfinished)


def write_parquet(table: FigureTable, path: Path) -> None:
    """Write Parquet with the unit and description of each column as metadata; raise OSError on failure."""
    columns = {name: _column(values, defuse=False) for name, values in table.data.items()}
    about = {c.name: {"unit": c.unit, "about": c.about} for c in table.columns}
    schema = pa.schema(
        [pa.field(name, column.type, metadata=about[name]) for name, column in columns.items()],
        metadata={"title": table.title},
    )
    with whole_file(path) as unfinished:
        pyarrow.parquet.write_table(pa.table(columns, schema=schema), unfinished, compression="zstd")


def _column(values: Values, *, defuse: bool) -> pa.Array:
    if isinstance(values, Category):
        names = pa.array([_text(name, defuse) for name in values.names], pa.string())
        codes = pa.array(values.codes, pa.int32(), mask=values.codes == UNKNOWN)
        dictionary = pa.DictionaryArray.from_arrays(codes, names)
        return dictionary.dictionary_decode() if defuse else dictionary
    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=True)  # NaN becomes null
    listed = list(values)
    if any(isinstance(value, str) for value in listed):
        return pa.array(
            [None if value is None else _text(str(value), defuse) for value in listed], pa.string()
        )
    return pa.array(listed, from_pandas=True)


def _text(text: str, defuse: bool) -> str:
    whole = _SURROGATES.sub("\ufffd", text)  # half of a surrogate pair cannot be encoded in UTF-8
    return defused(whole) if defuse else whole
