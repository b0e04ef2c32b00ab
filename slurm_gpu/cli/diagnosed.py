"""What `slurm-gpu diagnose` judges: what slurm-gpudbd knows of a run, and the timings of its steps."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.database.verdicts.jobseries import groups_of, series_of_timelines, series_of_windows
from slurm_gpu.diagnose.steps import COLUMNS, Steps, read_steps
from slurm_gpu.errors import UsageError

__all__ = ["groups_of", "series_of_timelines", "series_of_windows", "steps_of"]


def steps_of(path: Path) -> Steps:
    """The timings in a Parquet file; UsageError where there is no pyarrow, or the file is not one."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--steps needs pyarrow, which slurm-gpu[report] brings") from None
    try:
        there = set(pyarrow.parquet.read_schema(path).names)
        table = pyarrow.parquet.read_table(path, columns=[name for name in COLUMNS if name in there])
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"--steps {path}: cannot be read as Parquet: {error}") from error
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns[name] = column.to_numpy(zero_copy_only=False)
    try:
        return read_steps(columns)
    except ValueError as error:
        raise UsageError(f"--steps {path}: {error}") from None
