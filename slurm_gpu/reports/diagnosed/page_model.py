"""The content of a diagnosis page: the case, reduced to the rows and columns that fit on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, smooth
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.verdict import Verdict

MOST_ROWS = 256
MOST_COLUMNS = 288
# Maximum number of cells in all heat maps of one kind. A page with 128 GPUs and all metrics is below 1 MB.
MOST_CELLS = 320_000
_LEAST_COLUMNS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisPageModel:
    """The content of a page. `title` and `about` are its header; `by` and `coverage_text` describe the data.

    Times are shown in `timezone`.
    """

    title: str
    about: Sequence[str]
    by: str
    coverage_text: str
    case: Case
    verdict: Verdict
    timezone: str
    made: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """The drawn rows (workers) and columns (bins), with `values` of shape (n_rows, n_columns) per metric.

    Rows are sorted by group. `of` contains the group of each row, and `culprit` marks suspected rows.
    """

    workers: tuple[JobWorker, ...]
    of: NDArray[np.intp]
    culprit: NDArray[np.bool_]
    values: dict[Metric, Matrix]
    start_s: float
    width_s: float
    n_columns: int
    left_out: int
    """The number of workers that are not drawn; suspects are drawn first."""
    places: NDArray[np.intp]
    """The index of each row in the case."""

    @property
    def n_rows(self) -> int:
        """Return the number of drawn workers."""
        return len(self.workers)

    @property
    def is_of_one(self) -> bool:
        """Return whether the job has a single GPU and therefore no peers."""
        return self.n_rows + self.left_out == 1

    @property
    def end_s(self) -> float:
        """Return the end of the last column."""
        return self.start_s + self.n_columns * self.width_s

    def share(self, at_s: float) -> float:
        """Return the position of a time from 0 (start) to 1 (end); times outside are clipped."""
        whole = self.end_s - self.start_s
        return min(max((at_s - self.start_s) / whole, 0.0), 1.0) if whole > 0 else 0.0


def accused(case: Case, verdict: Verdict) -> NDArray[np.bool_]:
    """Return for each worker of the case whether the verdict names it.

    Verdicts from step timings name workers only by rank.
    """
    whole = set(verdict.culprits)
    ranks = {worker.rank for worker in verdict.culprits if not worker.device}
    names = set(verdict.roles)
    nodes = set() if verdict.culprits else set(verdict.nodes)
    return np.array(
        [
            worker in whole
            or (worker.rank is not None and worker.rank in ranks)
            or worker.name in names
            or (worker.node in nodes and nodes < set(case.series.nodes))
            for worker in case.series.workers
        ],
        dtype=bool,
    )


def view_of(case: Case, verdict: Verdict) -> CaseView:
    """Return the drawn part of a case: suspects, and an even sample of the others."""
    culprit = accused(case, verdict)
    rows = np.lexsort((np.arange(case.n), case.groups.of))
    rows = rows[_chosen(culprit[rows])]
    series = case.series
    metrics = [metric for metric in Metric if metric in series.values]
    room = MOST_CELLS // max(1, len(rows) * len(metrics))
    most = max(_LEAST_COLUMNS, min(MOST_COLUMNS, room))
    each = max(1, -(-series.n_bins // most))
    whole = series.n_bins // each
    values = {metric: _shrunk(series.values[metric][rows], each) for metric in metrics}
    return CaseView(
        workers=tuple(series.workers[row] for row in rows),
        of=case.groups.of[rows],
        culprit=culprit[rows],
        values=values,
        start_s=series.start_s,
        width_s=series.width_s * each,
        n_columns=whole + (series.n_bins % each > 0),
        left_out=case.n - len(rows),
        places=rows,
    )


def _chosen(culprit: NDArray[np.bool_]) -> NDArray[np.intp]:
    if len(culprit) <= MOST_ROWS:
        return np.arange(len(culprit))
    named, others = np.flatnonzero(culprit)[:MOST_ROWS], np.flatnonzero(~culprit)
    room = MOST_ROWS - len(named)
    some = others[np.linspace(0, len(others) - 1, room).astype(np.intp)] if room else others[:0]
    return np.sort(np.concatenate([named, some]))


def _shrunk(rows: Matrix, each: int) -> Matrix:
    rest = -rows.shape[1] % each
    padded = np.pad(rows, ((0, 0), (0, rest)), constant_values=np.nan) if rest else rows
    return smooth(padded, each)
