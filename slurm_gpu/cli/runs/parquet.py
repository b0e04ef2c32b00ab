"""Write runs to a Parquet file, for DuckDB, Spark, pandas and R."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.files.atomic import whole_file

_ROWS_AT_ONCE = 20_000
_TEXTS = frozenset(
    (
        *("id", "user", "account", "qos", "partition", "state", "gpu_type", "nodes"),
        *("server_type", "zone", "app", "app_field", "name", "exit_code"),
    )
)
_WHOLE = frozenset(("submit_s", "eligible_s", "start_s", "end_s", "elapsed_s", "time_limit_s", "nNODE"))


def write_runs(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """Write the given columns of all rows to a Parquet file, with gaps as null; write no file on an error.

    Return the number of rows. Raise UsageError if pyarrow is not installed, and OutsideError if the file
    cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--parquet requires pyarrow: install slurm-gpu[report], or use --csv") from None

    def kind(name: str) -> pa.DataType:
        return pa.string() if name in _TEXTS else pa.int64() if name in _WHOLE else pa.float64()

    schema = pa.schema([(name, kind(name)) for name in columns])
    remaining, n_rows = iter(rows), 0
    try:
        if path.exists() and not path.is_file():
            # A device, such as /dev/null, would be replaced by the file.
            raise UsageError(
                f"--parquet {path}: not a regular file; specify a file, which is created if it does not exist"
            )
        with (
            whole_file(path) as unfinished,
            pyarrow.parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer,
        ):
            while some := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
                columns_of = {name: [row[name] for row in some] for name in columns}
                writer.write_table(pa.table(columns_of, schema=schema))
                n_rows += len(some)
    except OSError as error:
        raise OutsideError(f"{path} cannot be written: {error.strerror or error}") from error
    return n_rows
