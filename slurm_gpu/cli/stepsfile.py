"""The timings that a job wrote itself: Parquet, or the CSV files that slurm_gpu_steps.py writes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series, Worker
from slurm_gpu.diagnose.steps import COLUMNS, Steps, read_steps
from slurm_gpu.errors import UsageError

_WHERE = ("node", "local_rank")
_MOST_BYTES = 1 << 30
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
            if local < len(on_node.get(node, ()))
        }
        workers = tuple(replace(worker, rank=ranks.get(worker)) for worker in series.workers)
        return replace(series, workers=workers)

    def groups(self, series: Series) -> Groups | None:
        """Who is of the same pipeline stage; None of one stage, or where ranks of GPUs are not known."""
        ranks = self.steps.ranks
        stages = {int(rank): stage for row in ranks for stage, rank in enumerate(row) if rank >= 0}
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
    rows = zip(columns["rank"], columns["node"], columns["local_rank"], strict=True)
    return Timings(steps, {int(rank): (str(node), int(local)) for rank, node, local in set(rows)})


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
    found: dict[str, list[str]] = {}
    size = 0
    for path in paths:
        try:
            size += path.stat().st_size
            if size > _MOST_BYTES:
                raise UsageError(f"--steps {path}: together more than 1 GiB; time fewer steps (every=10)")
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--steps {path}: cannot be read: {error}") from error
        whole = text[: text.rfind("\n") + 1]
        rows = csv.reader(whole.splitlines())
        head = next(rows, None)
        if head is None:
            continue  # killed before it wrote anything
        if names is None:
            names, found = head, {name: [] for name in head}
        elif head != names:
            raise UsageError(
                f"--steps {path}: line 1: columns {','.join(head)}, others have {','.join(names)}"
            )
        for number, row in enumerate(rows, 2):
            if len(row) != len(head):
                raise UsageError(f"--steps {path}: line {number}: {len(row)} values for {len(head)} columns")
            for name, value in zip(head, row, strict=True):
                found[name].append(value)
    return {name: _column(paths[0].parent, name, values) for name, values in found.items()}


def _column(place: Path, name: str, values: list[str]) -> Any:
    kind = np.int64 if name in _WHOLE else np.float64 if name == "duration" else np.str_
    try:
        return np.array(values, dtype=kind)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--steps {place}: column {name}: {error}") from None


def _parquet(path: Path) -> dict[str, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--steps: Parquet needs pyarrow (slurm-gpu[report]); CSV does not") from None
    try:
        there = set(pyarrow.parquet.read_schema(path).names)
        wanted = [name for name in (*COLUMNS, *_WHERE) if name in there]
        table = pyarrow.parquet.read_table(path, columns=wanted)
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"--steps {path}: cannot be read as Parquet: {error}") from error
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns[name] = column.to_numpy(zero_copy_only=False)
    return columns
