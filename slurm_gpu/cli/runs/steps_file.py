"""Read the timings that a job wrote: Parquet, or the CSV files of slurm_gpu_steps.py."""

from __future__ import annotations

import contextlib
import csv
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from slurm_gpu.cli.stepsparquet import read_parquet
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import JobWorker, Series
from slurm_gpu.diagnose.steps.table import COLUMNS, StepSeries, read_steps
from slurm_gpu.errors import UsageError

_WHERE = ("node", "local_rank")
_MOST_BYTES = 1 << 28
_TOO_LARGE = f"more than {_MOST_BYTES >> 20} MiB; time fewer steps (every=10)"
_MOST_ROWS = 20_000_000
_TOO_MANY_ROWS = f"more than {_MOST_ROWS:,} rows; time fewer steps (every=10)"
_WORDS = ("optype", "node")
# Maximum number of characters of a value.
_LONGEST = 255
# The longest row of slurm_gpu_steps.py has 200 characters.
_LONGEST_LINE = 16 * (_LONGEST + 1)
_ROWS_AT_ONCE = 10_000
_READ = (*COLUMNS, *_WHERE)
_WHOLE = ("dp_rank", "stage", "rank", "step", "mb_id", "local_rank")


@dataclass(frozen=True, slots=True)
class Timings:
    """Step timings of a job; `places` maps each rank to its node and local rank, if recorded."""

    steps: StepSeries
    places: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    def ranked(self, series: Series) -> Series:
        """Return the series with the launcher's ranks; process n of a node is assumed to use GPU n."""
        on_node: dict[str, list[JobWorker]] = {}
        for worker in series.workers:
            on_node.setdefault(worker.node, []).append(worker)
        ranks = {
            on_node[node][local]: rank
            for rank, (node, local) in self.places.items()
            if 0 <= local < len(on_node.get(node, ()))
        }
        workers = tuple(replace(worker, rank=ranks.get(worker)) for worker in series.workers)
        return replace(series, workers=workers)

    def groups(self, series: Series) -> Groups | None:
        """Return the GPUs by pipeline stage; None if there is one stage or the ranks of GPUs are unknown."""
        ranks = self.steps.ranks
        stages = {
            int(rank): stage for row in ranks for stage, here in enumerate(row) for rank in here if rank >= 0
        }
        of = [stages.get(-1 if worker.rank is None else worker.rank) for worker in series.workers]
        if ranks.shape[1] < 2 or any(stage is None for stage in of):
            return None
        names = tuple(f"stage {stage}" for stage in range(ranks.shape[1]))
        return Groups(of=np.array(of, dtype=np.intp), names=names, source="stages of the step timings")


def timings_of(path: Path) -> Timings:
    """Read a Parquet file, a CSV file, or a directory of CSV files; raise UsageError if it is invalid."""
    read = _directory if path.is_dir() else _one_csv if path.suffix == ".csv" else _parquet
    columns = read(path)
    try:
        steps = read_steps(columns)
    except ValueError as error:
        raise UsageError(f"--steps {path}: {error}") from None
    if not all(name in columns for name in _WHERE):
        return Timings(steps)
    return Timings(steps, _places(columns))


def _places(columns: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """Return the place of each rank; leave out ranks with two places, and places with two ranks."""
    if not np.issubdtype(np.asarray(columns["local_rank"]).dtype, np.integer):
        return {}  # such as floats of Parquet, where some rows lack the value
    rows = zip(*(np.asarray(columns[name]).tolist() for name in ("rank", *_WHERE)), strict=True)
    places = sorted({(int(rank), str(node), int(local)) for rank, node, local in rows if rank >= 0})
    ranks = Counter(rank for rank, _, _ in places)
    there = Counter((node, local) for _, node, local in places)
    return {
        rank: (node, local) for rank, node, local in places if ranks[rank] == 1 and there[node, local] == 1
    }


def _directory(path: Path) -> dict[str, Any]:
    parts = sorted(path.glob("*.csv"))
    if not parts:
        raise UsageError(
            f"--steps {path}: the directory has no *.csv file; slurm_gpu_steps.py writes one for each rank"
        )
    return _csv(parts)


def _one_csv(path: Path) -> dict[str, Any]:
    return _csv([path])


def _csv(paths: list[Path]) -> dict[str, Any]:
    """Read all rows of the files, except an incomplete last line, which a killed process leaves behind."""
    names: list[str] | None = None
    parts: list[dict[str, Any]] = []
    left_bytes, left_rows = _MOST_BYTES, _MOST_ROWS
    for path in paths:
        with _opened(path) as file:
            left_bytes -= os.fstat(file.fileno()).st_size
            if left_bytes < 0:
                raise UsageError(f"--steps {path}: together {_TOO_LARGE}")
            rows = _rows(path, file)
            head = next(rows, None)
            if head is None:
                continue  # the process was killed before it wrote anything
            if len(set(head)) < len(head):
                raise UsageError(f"--steps {path}: line 1: two columns have the same name: {','.join(head)}")
            if names is None:
                names = head
            elif head != names:
                raise UsageError(
                    f"--steps {path}: line 1: columns {','.join(head)}, but other files have "
                    f"{','.join(names)}"
                )
            for part in _parts(path, head, rows):
                parts.append(part)
                left_rows -= len(next(iter(part.values()), ()))
                if left_rows < 0:
                    raise UsageError(f"--steps {path}: together {_TOO_MANY_ROWS}")
    if names is None:
        raise UsageError(f"--steps {paths[0]}: has no complete line")
    return {name: np.concatenate([part[name] for part in parts]) for name in names if name in _READ}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a regular file; reject a pipe or a device."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, encoding="utf-8-sig", newline="") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"--steps {path}: is not a regular file")
            yield file
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--steps {path}: cannot be read: {reason}") from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield complete lines; reject a line that is longer than any valid row."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), ""), 1):
        if len(line) > _LONGEST_LINE:
            raise UsageError(f"--steps {path}: line {number}: more than {_LONGEST_LINE} characters")
        if line.endswith("\n"):
            yield line


def _rows(path: Path, file: TextIO) -> Iterator[list[str]]:
    reader = csv.reader(_lines(path, file))
    try:
        for row in reader:
            if any(len(value) > _LONGEST for value in row):
                raise UsageError(
                    f"--steps {path}: line {reader.line_num}: a value of more than {_LONGEST} characters"
                )
            yield row
    except csv.Error as error:
        raise UsageError(f"--steps {path}: line {reader.line_num}: {error}") from None


def _parts(path: Path, head: list[str], rows: Iterator[list[str]]) -> Iterator[dict[str, Any]]:
    """Yield the required columns in blocks of rows, since text takes ten times the memory of numbers."""
    first = 2
    while True:
        some = list(islice(rows, _ROWS_AT_ONCE))
        for number, row in enumerate(some, first):
            if len(row) != len(head):
                raise UsageError(f"--steps {path}: line {number}: {len(row)} values for {len(head)} columns")
        columns = zip(*some, strict=True) if some else ((),) * len(head)
        yield {
            name: _column(path, name, values, first)
            for name, values in zip(head, columns, strict=True)
            if name in _READ
        }
        first += len(some)
        if len(some) < _ROWS_AT_ONCE:
            return


def _column(path: Path, name: str, values: tuple[str, ...], first: int) -> Any:
    # Keep text as objects: a character array reserves the longest length in each row.
    kind = np.int64 if name in _WHOLE else np.float64 if name == "duration" else np.object_
    try:
        return np.array(tuple(map(sys.intern, values)) if kind is np.object_ else values, dtype=kind)
    except (ValueError, OverflowError):
        line, value = next(
            (line, value) for line, value in enumerate(values, first) if not _is_of(kind, value)
        )
        what = "whole number" if kind is np.int64 else "number"
        raise UsageError(f"--steps {path}: line {line}: column {name}: {value!r} is not a {what}") from None


def _is_of(kind: Any, value: str) -> bool:
    try:
        np.array((value,), dtype=kind)
    except (ValueError, OverflowError):
        return False
    return True


def _parquet(path: Path) -> dict[str, Any]:
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise UsageError(f"--steps {path}: cannot be read: {error.strerror}") from error
    if n_bytes > _MOST_BYTES:
        raise UsageError(f"--steps {path}: {_TOO_LARGE}")
    table = read_parquet(path, _READ, _WORDS, _MOST_ROWS)
    return {name: _of_arrow(path, name, table.column(name)) for name in table.column_names}


def _of_arrow(path: Path, name: str, column: Any) -> Any:
    import pyarrow

    column = column.combine_chunks()
    if not pyarrow.types.is_dictionary(column.type):
        return column.to_numpy(zero_copy_only=False)
    words = [_word(path, name, word) for word in column.dictionary.to_pylist()]
    return np.array([*words, ""], dtype=np.object_)[
        column.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    ]


def _word(path: Path, name: str, word: Any) -> str:
    text = "" if word is None else str(word)
    if len(text) > _LONGEST:
        raise UsageError(f"--steps {path}: column {name}: a value of more than {_LONGEST} characters")
    return text
