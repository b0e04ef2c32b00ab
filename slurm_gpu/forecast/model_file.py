"""A site's model as bytes, for a database, and back, with every part of it looked at.

What is read forecasts a finite wait of any job, whoever wrote it. Where only the learned part is damaged, the
tables beside it go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast.forecaster import LEARNED, TABLES, Correction, Forecaster
from slurm_gpu.forecast.model import ForecastModel
from slurm_gpu.forecast.packing import DamagedError, PackedArchive, pack
from slurm_gpu.forecast.queue import TABLE_ORDER, Vocabulary, feature_names
from slurm_gpu.forecast.regression import LinearRegression, Regression, Trees
from slurm_gpu.forecast.samples import Floats
from slurm_gpu.forecast.tables import WaitTables
from slurm_gpu.forecast.wait_grid import N_BINS, SPREAD_OCTAVES

FORMAT = 3
_TREES = {
    "roots": np.int32,
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "value": np.float32,
    "first": np.int32,
    "bins": np.uint8,
    "shares": np.float32,
}
# Of a slope of the line; sums of any more might leave what a float64 holds.
_STEEPEST = 2.0**100
_MOST_TREES = 1000
_DEEPEST = 1000

_Source = Literal["tables", "learned"]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Octaves = Annotated[float, Meta(ge=-64, le=64)]
# Up to the year 6325, which datetime still knows.
_Epoch = Annotated[float, Meta(ge=0, le=2**37)]
_Count = Annotated[int, Meta(ge=0)]


class _AnyFormat(msgspec.Struct):
    format: int


class _Judged(msgspec.Struct, forbid_unknown_fields=True):
    source: _Source
    bounds: dict[_Source, tuple[_Octaves, _Octaves]]
    judged: _Count
    within: dict[_Source, tuple[_Share, _Share]]
    spread: tuple[_Share, ...]


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: int
    made_at_s: _Epoch
    since_s: _Epoch
    n_looks: _Count
    accounts: list[str]
    partitions: list[str]
    corrections: dict[Literal["cpu", "gpu"], _Judged]
    features: list[str]
    """Of the learned part, if there is one."""
    intercept: float


def model_bytes(model: ForecastModel) -> bytes:
    """For `read_model`."""
    forecaster, regression = model.forecaster, model.forecaster.regression
    tables = forecaster.tables
    arrays: dict[str, NDArray[Any]] = {}
    for name in TABLE_ORDER:
        arrays[f"started.{name}"] = tables.started[name].astype(np.float32)
        arrays[f"waiting.{name}"] = tables.waiting[name].astype(np.float32)
    if regression is not None:
        arrays |= {name: getattr(regression.trees, name).astype(dtype) for name, dtype in _TREES.items()}
        arrays |= {"slopes": regression.line.slopes.astype(np.float64), "typical": model.typical}
    told = _ModelFile(
        format=FORMAT,
        made_at_s=forecaster.made_at_s,
        since_s=model.since_s,
        n_looks=model.n_looks,
        accounts=model.vocabulary.account.tolist(),
        partitions=model.vocabulary.partition.tolist(),
        corrections=msgspec.convert(
            msgspec.to_builtins(forecaster.corrections), dict[Literal["cpu", "gpu"], _Judged]
        ),
        features=[] if regression is None else list(regression.names),
        intercept=0.0 if regression is None else regression.line.intercept,
    )
    return pack(told, arrays)


def read_model(body: bytes) -> ForecastModel:
    """What `model_bytes` made; raises DatabaseError where it is no model of this version."""
    try:
        packed = PackedArchive(body)
        told = _told(packed)
        model = _without_learned(packed, told)
    except DamagedError as error:
        raise DatabaseError(f"the stored forecasts cannot be read; make them anew: {error}") from error
    if not told.features:
        return _of_tables(model, "")
    try:
        regression, typical = _learned(packed, told)
    except DamagedError as error:
        return _of_tables(model, str(error))
    return replace(model, forecaster=replace(model.forecaster, regression=regression), typical=typical)


def _told(packed: PackedArchive) -> _ModelFile:
    found = packed.told(_AnyFormat).format
    if found != FORMAT:
        raise DamagedError(f"they have format {found}, not {FORMAT}")
    return packed.told(_ModelFile)


def _without_learned(packed: PackedArchive, told: _ModelFile) -> ForecastModel:
    corrections: dict[str, Correction] = {
        kind: _correction(kind, one) for kind, one in told.corrections.items()
    }
    tables = WaitTables(TABLE_ORDER, _counts(packed, "started"), _counts(packed, "waiting"))
    for name in TABLE_ORDER:
        if tables.started[name].shape != tables.waiting[name].shape:
            raise DamagedError(f"waiting.{name} has other groups than started.{name}")
    return ForecastModel(
        Forecaster(told.made_at_s, tables, None, corrections),
        Vocabulary(_names(told.accounts, "accounts"), _names(told.partitions, "partitions")),
        np.zeros(len(feature_names())),
        told.n_looks,
        told.since_s,
    )


def _of_tables(model: ForecastModel, lost: str) -> ForecastModel:
    """The tables forecast, with the interval that their own errors give."""
    corrections = {kind: replace(one, source=TABLES) for kind, one in model.forecaster.corrections.items()}
    return replace(model, forecaster=replace(model.forecaster, corrections=corrections), lost=lost)


def _correction(kind: str, judged: _Judged) -> Correction:
    for what in (judged.bounds, judged.within):
        if not {TABLES, judged.source} <= what.keys():
            raise DamagedError(f"corrections of {kind}: nothing is said of {TABLES}, or of what is used")
    if len(judged.spread) != len(SPREAD_OCTAVES) - 1 and (judged.spread or judged.source == LEARNED):
        raise DamagedError(f"corrections of {kind}: a spread has {len(SPREAD_OCTAVES) - 1} values")
    return Correction(**msgspec.structs.asdict(judged))


def _counts(packed: PackedArchive, what: str) -> Mapping[str, Floats]:
    """By grouping (groups, N_BINS)."""
    found = {}
    for name in TABLE_ORDER:
        counts = packed.array(f"{what}.{name}", np.float32).astype(float)
        if len(counts) % N_BINS or (counts < 0).any():
            raise DamagedError(f"{what}.{name}: holds no counts in {N_BINS} bins for each group")
        found[name] = counts.reshape(-1, N_BINS)
    return found


def _names(names: list[str], what: str) -> NDArray[np.str_]:
    if sorted(set(names)) != names:
        raise DamagedError(f"{what}: are not different names in their order")
    return np.array(names, dtype=np.str_)


def _learned(packed: PackedArchive, told: _ModelFile) -> tuple[Regression, Floats]:
    """The regression, and the features of an ordinary job."""
    known, typical = feature_names(), packed.array("typical", np.float64)
    if unknown := set(told.features) - set(known):
        raise DamagedError(f"features {', '.join(sorted(unknown))[:80]!r} are of another version")
    if len(typical) != len(known):
        raise DamagedError(f"typical: {len(typical)} values for {len(known)} features")
    slopes = packed.array("slopes", np.float64)
    if len(slopes) != len(told.features) or (np.abs(slopes) > _STEEPEST).any():
        raise DamagedError(f"slopes: are no slope for each of {len(told.features)} features")
    trees = Trees(**{name: packed.array(name, dtype) for name, dtype in _TREES.items()})
    _check_trees(trees, len(told.features))
    return Regression(told.features, trees, LinearRegression(slopes, told.intercept)), typical


def _check_trees(trees: Trees, n_columns: int) -> None:
    n = len(trees.feature)
    if any(len(getattr(trees, name)) != n for name in ("threshold", "left", "right", "value")):
        raise DamagedError("trees: their arrays are of unequal length")
    if not 0 < len(trees.roots) <= _MOST_TREES or not _within(trees.roots, 0, n):
        raise DamagedError(f"roots: are not at most {_MOST_TREES} of {n} nodes")
    if not _within(trees.feature, -1, n_columns):
        raise DamagedError(f"feature: holds what is none of {n_columns} features")
    _check_ways(trees)
    n_entries = len(trees.bins)
    if len(trees.first) != n + 1 or not _within(trees.first, 0, n_entries + 1):
        raise DamagedError("first: is no place in bins for each node")
    if (np.diff(trees.first) < 0).any() or len(trees.shares) != n_entries:
        raise DamagedError("first, shares: do not go with bins")
    if not _within(trees.bins, 0, N_BINS) or (trees.shares < 0).any() or (trees.shares > 2).any():
        raise DamagedError("bins, shares: hold what is no share of a bin")


def _check_ways(trees: Trees) -> None:
    """From each root every way ends in a leaf, and soon."""
    n, at = len(trees.feature), trees.roots
    for _ in range(_DEEPEST):
        at = np.unique(at[trees.feature[at] >= 0])
        if not len(at):
            return
        at = np.concatenate([trees.left[at], trees.right[at]])
        if not _within(at, 0, n):
            raise DamagedError(f"left, right: lead to none of {n} nodes")
    raise DamagedError(f"left, right: lead on for more than {_DEEPEST} nodes")


def _within(values: NDArray[Any], least: int, below: int) -> bool:
    return bool(((values >= least) & (values < below)).all())
