"""The timings that a job wrote itself: Parquet, or the CSV files that slurm_gpu_steps.py writes."""

from __future__ import annotations

import csv
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series, Worker
from slurm_gpu.diagnose.steps import COLUMNS, Steps, read_steps
from slurm_gpu.errors import UsageError

_WHERE = ("node", "local_rank")
_MOST_BYTES = 1 << 28
_MOST_ROWS = 20_000_000
_WORDS = ("optype", "node")
_LONGEST = 255
"""Characters of a value."""
_WHOLE = ("dp_rank", "stage", "rank", "step", "mb_id", "local_rank")


@dataclass(frozen=True, slots=True)
class Timings:
    """What a job told of its steps; `places`: each rank's node, and its number there, where it told them."""

    steps: Steps
    places: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    def ranked(self, series: Series) -> Series:
        """The series with the launcher's ranks: the n-th process of a node is taken to have its n-th GPU."""
        on_node: dict[str, list[Worker]] = {}
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
        """Who is of the same pipeline stage; None of one stage, or where ranks of GPUs are not known."""
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
    """Read a Parquet file, a CSV file, or a directory of CSV files; UsageError says what is wrong where."""
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
    """Where each rank is; not of one that is told to be in two places, nor of two that are in one."""
    if not np.issubdtype(np.asarray(columns["local_rank"]).dtype, np.integer):
        return {}  # such as Parquet that has none in some rows
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
        raise UsageError(f"--steps {path}: no *.csv in it; slurm_gpu_steps.py writes one for each rank")
    return _csv(parts)


def _one_csv(path: Path) -> dict[str, Any]:
    return _csv([path])


def _csv(paths: list[Path]) -> dict[str, Any]:
    """All rows of these files. A last line without its end is left out: its process was killed."""
    names: list[str] | None = None
    parts: list[dict[str, Any]] = []
    size = 0
    for path in paths:
        text = _text(path, _MOST_BYTES - size)
        size += len(text)
        rows = _rows(path, text[: text.rfind("\n") + 1])
        head = next(rows, None)
        if head is None:
            continue  # killed before it wrote anything
        if len(set(head)) < len(head):
            raise UsageError(f"--steps {path}: line 1: a column has the name of another: {','.join(head)}")
        if names is None:
            names = head
        elif head != names:
            raise UsageError(
                f"--steps {path}: line 1: columns {','.join(head)}, others have {','.join(names)}"
            )
        found = list(rows)
        for number, row in enumerate(found, 2):
            if len(row) != len(head):
                raise UsageError(f"--steps {path}: line {number}: {len(row)} values for {len(head)} columns")
        columns = zip(*found, strict=True) if found else ((),) * len(head)
        parts.append({name: _column(path, name, values) for name, values in zip(head, columns, strict=True)})
    if names is None:
        raise UsageError(f"--steps {paths[0]}: holds no whole line")
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _text(path: Path, most: int) -> str:
    """What stands in a file of no more than so many bytes; a pipe or a device is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"--steps {path}: is no regular file")
            read = file.read(most + 1)
        if len(read) > most:
            whole = f"{_MOST_BYTES >> 20} MiB"
            raise UsageError(f"--steps {path}: together more than {whole}; time fewer steps (every=10)")
        return read.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"--steps {path}: cannot be read: {said}") from error


def _rows(path: Path, whole: str) -> Iterator[list[str]]:
    reader = csv.reader(whole.splitlines())
    try:
        for row in reader:
            if any(len(value) > _LONGEST for value in row):
                raise UsageError(
                    f"--steps {path}: line {reader.line_num}: a value of more than {_LONGEST} characters"
                )
            yield row
    except csv.Error as error:
        raise UsageError(f"--steps {path}: line {reader.line_num}: {error}") from None


def _column(path: Path, name: str, values: tuple[str, ...]) -> Any:
    # Of text the words themselves: an array of characters has room for the longest in each row.
    kind = np.int64 if name in _WHOLE else np.float64 if name == "duration" else np.object_
    try:
        return np.array(values, dtype=kind)
    except (ValueError, OverflowError):
        line, value = next((line, value) for line, value in enumerate(values, 2) if not _is_of(kind, value))
        what = "whole number" if kind is np.int64 else "number"
        raise UsageError(f"--steps {path}: line {line}: column {name}: {value!r} is no {what}") from None


def _is_of(kind: Any, value: str) -> bool:
    try:
        np.array((value,), dtype=kind)
    except (ValueError, OverflowError):
        return False
    return True


def _parquet(path: Path) -> dict[str, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--steps: Parquet needs pyarrow (slurm-gpu[report]); CSV does not") from None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"--steps {path}: is no regular file")
        # Text stays a dictionary: what takes a few bytes there may be far more, written out.
        names = pyarrow.parquet.read_schema(path).names
        there = set(names)
        if twice := sorted(name for name in (*COLUMNS, *_WHERE) if names.count(name) > 1):
            raise UsageError(f"--steps {path}: column {twice[0]} is there {names.count(twice[0])} times")
        words = [name for name in _WORDS if name in there]
        with pyarrow.parquet.ParquetFile(path, read_dictionary=words) as file:
            rows = file.metadata.num_rows
            if rows > _MOST_ROWS:
                raise UsageError(
                    f"--steps {path}: {rows:,} rows, {_MOST_ROWS:,} at most; time fewer steps (every=10)"
                )
            table = file.read([name for name in (*COLUMNS, *_WHERE) if name in there])
        return {name: _of_arrow(path, name, table.column(name)) for name in table.column_names}
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise UsageError(f"--steps {path}: cannot be read as Parquet (CSV ends in .csv): {error}") from error


def _of_arrow(path: Path, name: str, column: Any) -> Any:
    import pyarrow

    column = column.combine_chunks()
    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    fits = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if name in _WORDS:
        fits = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    if not fits:
        raise UsageError(f"--steps {path}: column {name} must not be of {kind}")
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
