"""Convert a site's model to bytes for a database, and read them back, checking every part.

A model that passes the checks forecasts a finite wait for any job, even if the bytes were forged. If only the
regression is damaged, forecasts come from the tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast.errors import ERROR_ORDER, ErrorTables
from slurm_gpu.forecast.forecaster import LEARNED, TABLES, Correction, Forecaster
from slurm_gpu.forecast.model import ForecastModel
from slurm_gpu.forecast.packing import DamagedError, PackedArchive, pack
from slurm_gpu.forecast.queue import TABLE_ORDER, Vocabulary, feature_names
from slurm_gpu.forecast.regression import LinearRegression, Regression, Trees
from slurm_gpu.forecast.samples import Floats
from slurm_gpu.forecast.tables import WaitTables
from slurm_gpu.forecast.wait_grid import N_BINS, N_ERROR_BINS

FORMAT = 4
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
# Maximum slope of the line. Sums of larger slopes might overflow a float64.
_MAX_SLOPE = 2.0**100
_MAX_TREES = 1000
_MAX_DEPTH = 1000

_Source = Literal["tables", "learned"]
_Share = Annotated[float, Meta(ge=0, le=1)]
# The maximum time is in the year 6325, which datetime supports.
_Epoch = Annotated[float, Meta(ge=0, le=2**37)]
_Count = Annotated[int, Meta(ge=0)]


class _AnyFormat(msgspec.Struct):
    format: int


class _Judged(msgspec.Struct, forbid_unknown_fields=True):
    source: _Source
    shares: dict[_Source, _Share]
    judged: _Count
    within: dict[_Source, tuple[_Share, _Share]]


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: int
    made_at_s: _Epoch
    since_s: _Epoch
    n_samples: _Count
    accounts: list[str]
    partitions: list[str]
    corrections: dict[Literal["cpu", "gpu"], _Judged]
    features: list[str]
    """The features of the regression; empty if there is no regression."""
    intercept: float


def model_bytes(model: ForecastModel) -> bytes:
    """Convert a model to bytes that `read_model` can read."""
    forecaster, regression = model.forecaster, model.forecaster.regression
    tables = forecaster.tables
    arrays: dict[str, NDArray[Any]] = {}
    for name in TABLE_ORDER:
        arrays[f"started.{name}"] = tables.started[name].astype(np.float32)
        arrays[f"waiting.{name}"] = tables.waiting[name].astype(np.float32)
    for source, errors in forecaster.errors.items():
        arrays |= {f"errors.{source}.{name}": errors.counts[name].astype(np.float32) for name in ERROR_ORDER}
    if regression is not None:
        arrays |= {name: getattr(regression.trees, name).astype(dtype) for name, dtype in _TREES.items()}
        arrays |= {"slopes": regression.line.slopes.astype(np.float64), "typical": model.typical}
    header = _ModelFile(
        format=FORMAT,
        made_at_s=forecaster.made_at_s,
        since_s=model.since_s,
        n_samples=model.n_samples,
        accounts=model.vocabulary.account.tolist(),
        partitions=model.vocabulary.partition.tolist(),
        corrections=msgspec.convert(
            msgspec.to_builtins(forecaster.corrections), dict[Literal["cpu", "gpu"], _Judged]
        ),
        features=[] if regression is None else list(regression.names),
        intercept=0.0 if regression is None else regression.line.intercept,
    )
    return pack(header, arrays)


def read_model(body: bytes) -> ForecastModel:
    """Return the model in `body`; raise DatabaseError if the bytes are not a model of this version."""
    try:
        packed = PackedArchive(body)
        header = _header(packed)
        model = _without_regression(packed, header)
    except DamagedError as error:
        raise DatabaseError(
            f"the stored forecast model cannot be read: {error}; run `slurm-gpu forecast train` again"
        ) from error
    if not header.features:
        return _of_tables(model, "")
    try:
        regression, typical = _regression(packed, header)
        errors = dict(model.forecaster.errors)
        if errors:
            errors[LEARNED] = _errors(packed, LEARNED)
    except DamagedError as error:
        return _of_tables(model, str(error))
    forecaster = replace(model.forecaster, regression=regression, errors=errors)
    return replace(model, forecaster=forecaster, typical=typical)


def _header(packed: PackedArchive) -> _ModelFile:
    found = packed.header(_AnyFormat).format
    if found != FORMAT:
        raise DamagedError(f"it has format {found}, not {FORMAT}")
    return packed.header(_ModelFile)


def _without_regression(packed: PackedArchive, header: _ModelFile) -> ForecastModel:
    corrections: dict[str, Correction] = {
        kind: _correction(kind, one) for kind, one in header.corrections.items()
    }
    errors = {TABLES: _errors(packed, TABLES)} if corrections else {}
    tables = WaitTables(
        TABLE_ORDER,
        {name: _counts(packed, f"started.{name}", N_BINS) for name in TABLE_ORDER},
        {name: _counts(packed, f"waiting.{name}", N_BINS) for name in TABLE_ORDER},
    )
    for name in TABLE_ORDER:
        if tables.started[name].shape != tables.waiting[name].shape:
            raise DamagedError(f"waiting.{name} and started.{name} have different groups")
    return ForecastModel(
        Forecaster(header.made_at_s, tables, None, corrections, errors),
        Vocabulary(_names(header.accounts, "accounts"), _names(header.partitions, "partitions")),
        np.zeros(len(feature_names())),
        header.n_samples,
        header.since_s,
    )


def _of_tables(model: ForecastModel, read_error: str) -> ForecastModel:
    """Return the model without a regression: forecasts and their intervals come from the tables."""
    corrections = {kind: replace(one, source=TABLES) for kind, one in model.forecaster.corrections.items()}
    return replace(
        model, forecaster=replace(model.forecaster, corrections=corrections), read_error=read_error
    )


def _correction(kind: str, judged: _Judged) -> Correction:
    for what in (judged.shares, judged.within):
        if not {TABLES, judged.source} <= what.keys():
            raise DamagedError(f"corrections of {kind} lack values for {TABLES} or {judged.source}")
    return Correction(**msgspec.structs.asdict(judged))


def _errors(packed: PackedArchive, source: str) -> ErrorTables:
    return ErrorTables(
        {name: _counts(packed, f"errors.{source}.{name}", N_ERROR_BINS) for name in ERROR_ORDER}
    )


def _counts(packed: PackedArchive, name: str, n_bins: int) -> Floats:
    """Return the counts (groups, n_bins) of one grouping."""
    counts = packed.array(name, np.float32).astype(float)
    if len(counts) % n_bins or (counts < 0).any():
        raise DamagedError(f"{name} does not have counts in {n_bins} bins for each group")
    return counts.reshape(-1, n_bins)


def _names(names: list[str], what: str) -> NDArray[np.str_]:
    if sorted(set(names)) != names:
        raise DamagedError(f"{what} are not sorted or not unique")
    return np.array(names, dtype=np.str_)


def _regression(packed: PackedArchive, header: _ModelFile) -> tuple[Regression, Floats]:
    """Return the regression, and the features of a typical job."""
    known, typical = feature_names(), packed.array("typical", np.float64)
    if unknown := set(header.features) - set(known):
        raise DamagedError(f"this version lacks the features {', '.join(sorted(unknown))[:80]!r}")
    if len(typical) != len(known):
        raise DamagedError(f"typical has {len(typical)} values for {len(known)} features")
    # Features are float32.
    if (np.abs(typical) > np.finfo(np.float32).max).any():
        raise DamagedError("typical contains values out of range")
    slopes = packed.array("slopes", np.float64)
    if len(slopes) != len(header.features) or (np.abs(slopes) > _MAX_SLOPE).any():
        raise DamagedError(f"slopes must contain a valid slope for each of {len(header.features)} features")
    trees = Trees(**{name: packed.array(name, dtype) for name, dtype in _TREES.items()})
    _check_trees(trees, len(header.features))
    return Regression(header.features, trees, LinearRegression(slopes, header.intercept)), typical


def _check_trees(trees: Trees, n_columns: int) -> None:
    n = len(trees.feature)
    if any(len(getattr(trees, name)) != n for name in ("threshold", "left", "right", "value")):
        raise DamagedError("the arrays of the trees differ in length")
    if not 0 < len(trees.roots) <= _MAX_TREES or not _within(trees.roots, 0, n):
        raise DamagedError(f"roots must contain 1 to {_MAX_TREES} of the {n} nodes")
    if not _within(trees.feature, -1, n_columns):
        raise DamagedError(f"feature contains an index outside the {n_columns} features")
    _check_paths(trees)
    n_entries = len(trees.bins)
    if len(trees.first) != n + 1 or not _within(trees.first, 0, n_entries + 1):
        raise DamagedError("first must contain an index into bins for each node")
    if (np.diff(trees.first) < 0).any() or len(trees.shares) != n_entries:
        raise DamagedError("first or shares do not match bins")
    if not _within(trees.bins, 0, N_BINS) or (trees.shares < 0).any() or (trees.shares > 2).any():
        raise DamagedError("bins or shares contain values out of range")


def _check_paths(trees: Trees) -> None:
    """Raise DamagedError unless every path from a root ends in a leaf within _MAX_DEPTH nodes."""
    n, at = len(trees.feature), trees.roots
    for _ in range(_MAX_DEPTH):
        at = np.unique(at[trees.feature[at] >= 0])
        if not len(at):
            return
        at = np.concatenate([trees.left[at], trees.right[at]])
        if not _within(at, 0, n):
            raise DamagedError(f"left or right contains an index outside the {n} nodes")
    raise DamagedError(f"a path along left and right has more than {_MAX_DEPTH} nodes")


def _within(values: NDArray[Any], least: int, below: int) -> bool:
    return bool(((values >= least) & (values < below)).all())
