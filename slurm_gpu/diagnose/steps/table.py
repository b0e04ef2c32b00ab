"""Read a table of step timings into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.robust import Matrix

# Columns of a table of steps with one row per operation; other columns are ignored. In each row, dp_rank is
# the replica, stage is the pipeline stage, and rank is the launcher's rank (negative if unknown). Durations
# are in seconds, and mb_id is the microbatch. Only the optypes `forward-compute` and `backward-compute`
# count.
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "duration", "mb_id")
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_LONGEST_S = 1e6
# Maximum size of the arrays, in operations; most of their elements may be empty.
_MOST_SLOTS = 1 << 24
_GREATEST_RANK = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Seconds of computation in arrays (replicas, stages, steps, microbatches), with NaN for missing data.

    `ranks` (replicas, stages, slots) contains the launcher's ranks; −1 if unknown. Tensor-parallel ranks of
    the same replica and stage compute for as long as the slowest of them. `numbers` contains the step
    numbers.
    """

    forward: Matrix
    backward: Matrix
    ranks: NDArray[np.intp]
    numbers: NDArray[np.intp]


def read_steps(columns: Mapping[str, Any]) -> StepSeries:
    """Convert the columns of a table, arrays of equal length; raise ValueError if a column is invalid."""
    lacking = [name for name in COLUMNS if name not in columns]
    if lacking:
        raise ValueError(f"steps: missing column {', '.join(lacking)}; required: {', '.join(COLUMNS)}")
    optype = np.asarray(columns["optype"])
    computing = np.asarray((optype == _FORWARD) | (optype == _BACKWARD), dtype=bool)
    if not computing.any():
        raise ValueError(
            f"steps: optype contains neither {_FORWARD} nor {_BACKWARD}: no row is a computation"
        )
    backward = optype[computing] == _BACKWARD
    index, shape, rank, numbers = [], [], np.array([]), np.array([])
    for name in ("dp_rank", "stage", "step", "mb_id", "rank"):
        column = np.asarray(columns[name])
        if column.shape != optype.shape:
            raise ValueError(f"steps: {name} has {column.size} rows, optype {optype.size}")
        if not np.issubdtype(column.dtype, np.integer):
            raise ValueError(f"steps: {name} must be whole numbers, not {column.dtype}")
        column = column[computing]
        if name == "rank":
            if column.max() > _GREATEST_RANK:
                raise ValueError(f"steps: rank must be at most {_GREATEST_RANK}, not {column.max()}")
            rank = np.where(column >= 0, column, -1)
        else:
            found, places = np.unique(column, return_inverse=True)
            index.append(places)
            shape.append(len(found))
            numbers = found if name == "step" else numbers
    seconds = np.asarray(columns["duration"], dtype=np.float64)[computing]
    if not ((seconds >= 0) & (seconds <= _LONGEST_S)).all():
        raise ValueError(
            f"steps: duration must be seconds, 0 to {_LONGEST_S:,.0f}, in each row that computes"
        )
    slot, ranks = _slots(index, (shape[0], shape[1]), rank.astype(np.intp))
    size, n_slots = int(np.prod(shape)), ranks.shape[2]
    if size * n_slots > min(64 * len(seconds) + 4096, max(_MOST_SLOTS, 4 * len(seconds))):
        raise ValueError(
            f"steps: {len(seconds)} rows are too few for {' × '.join(map(str, shape))} operations"
        )
    flat = np.ravel_multi_index(tuple(index), tuple(shape)) * n_slots + slot
    _reject_duplicates(flat, backward, index, ranks, slot)
    whole = (*shape, n_slots)
    return StepSeries(
        # If a stage has several chunks of the model (interleaving), they are computed one after the other.
        forward=_slowest(_summed(flat[~backward], seconds[~backward], whole)),
        backward=_slowest(_summed(flat[backward], seconds[backward], whole)),
        ranks=ranks,
        numbers=numbers.astype(np.intp),
    )


def _slots(
    index: list[NDArray[np.intp]], shape: tuple[int, int], rank: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the slot of each row's rank, and the ranks (replicas, stages, slots).

    Each stage of a replica has one slot per rank.
    """
    place = index[0] * shape[1] + index[1]
    known, code = np.unique(rank, return_inverse=True)
    pairs, which = np.unique(place * len(known) + code, return_inverse=True)
    places = pairs // len(known)
    slot = np.arange(len(pairs)) - np.searchsorted(places, places)
    most = int(slot.max()) + 1
    if shape[0] * shape[1] * most > 64 * len(rank) + 4096:
        raise ValueError(
            f"steps: one pair of dp_rank and stage has {most} ranks, but other pairs have far fewer"
        )
    ranks = np.full((shape[0] * shape[1], most), -1, dtype=np.intp)
    ranks[places, slot] = known[pairs % len(known)]
    return slot[which], ranks.reshape(*shape, -1)


def _reject_duplicates(
    flat: NDArray[np.intp],
    backward: NDArray[np.bool_],
    index: list[NDArray[np.intp]],
    ranks: NDArray[np.intp],
    slot: NDArray[np.intp],
) -> None:
    """Raise ValueError if a worker has more rows per operation than its peers and would appear slow."""
    each = np.bincount(2 * flat + backward)[2 * flat + backward]
    most = np.zeros(ranks.shape, dtype=np.intp)
    np.maximum.at(most, (index[0], index[1], slot), each)
    known = np.where(most > 0, most, np.iinfo(np.intp).max).min(axis=(0, 2))
    wrong = np.flatnonzero(each > known[index[1]])
    if wrong.size:
        row = int(wrong[0])
        rank = ranks[index[0][row], index[1][row], slot[row]]
        raise ValueError(
            f"steps: rank {rank} has {each[row]} rows for one operation of a microbatch, but other "
            f"ranks of its stage have {known[index[1][row]]}: remove the duplicate rows"
        )


def _summed(flat: NDArray[np.intp], seconds: Matrix, shape: tuple[int, ...]) -> Matrix:
    size = int(np.prod(shape))
    sums = np.bincount(flat, seconds, size)
    return np.where(np.bincount(flat, minlength=size) > 0, sums, np.nan).reshape(shape)


def _slowest(seconds: Matrix) -> Matrix:
    """Return the seconds of the slowest rank of each stage, since the ranks wait for each other."""
    return np.asarray(np.fmax.reduce(seconds, axis=-1))
