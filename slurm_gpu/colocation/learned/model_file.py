"""Store trained nets with their provenance, and checkpoints of a training run, in small files.

The format is numpy's .npz. A file is read without pickle and fully validated: reading returns a net of this
version whose outputs are numbers, or raises an error with the reason.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.net import Net
from slurm_gpu.errors import InputError
from slurm_gpu.files.atomic import whole_file
from slurm_gpu.files.bounded_read import read_bytes

FORMAT = "slurm-gpu colocation model 1"
# Maximum size of all arrays in bytes; the nets of the project's planners are far smaller.
_LARGEST = 16 * 2**20
_MOST_LAYERS = 8
# A checkpoint has at most about 50 parts; zipfile takes 700 bytes of memory for each.
_MOST_PARTS = 1000
_DESCRIPTION = "description"
# The format's name in models of version 0.2.
_FORMER_DESCRIPTION = "told"


@dataclass(frozen=True, slots=True)
class PlannerModel:
    """A net with its description."""

    kind: str
    """The name of the planner that uses the net."""
    inputs: tuple[str, ...]
    """The names of the net's inputs, in order. A net works only with the inputs on which it was trained."""
    net: Net
    provenance: Mapping[str, Any]
    """Data, seed, versions, time and quality of the training, as JSON values."""


def write_model(path: Path, model: PlannerModel) -> None:
    """Write a model; keep the mode of an existing file, and give a new file the mode that the umask permits.

    Models are not private: slurm-gpuctld must be able to read them. Raise OSError if writing fails.
    """
    description = {
        "format": FORMAT,
        "kind": model.kind,
        "inputs": list(model.inputs),
        "provenance": dict(model.provenance),
    }
    write_arrays(path, description, net_arrays(model.net), mode=_mode_of(path))


def read_model(path: Path, kind: str, inputs: tuple[str, ...]) -> PlannerModel:
    """Return a model for this planner and these inputs; raise InputError if the file contains none."""
    description, arrays = read_arrays(path)
    if description.get("format") != FORMAT:
        raise _error(path, f"format {_shown(description.get('format'))} must be {FORMAT!r}")
    if description.get("kind") != kind:
        raise _error(path, f"is a model for planner {_shown(description.get('kind'))}, not for {kind!r}")
    if description.get("inputs") != list(inputs):
        raise _error(
            path,
            "was trained by another version, which used other inputs; run `slurm-gpu colocation train` again",
        )
    provenance = description.get("provenance")
    if not isinstance(provenance, dict):
        raise _error(path, f"provenance {_shown(provenance)} must be a JSON object")
    return PlannerModel(kind, inputs, net_of(path, arrays), provenance)


def net_arrays(net: Net, prefix: str = "") -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a net, keyed by their names in a file."""
    out = {}
    for number, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        out[f"{prefix}weight{number}"], out[f"{prefix}bias{number}"] = weight, bias
    return out


def net_of(path: Path, arrays: Mapping[str, NDArray[np.float32]], prefix: str = "") -> Net:
    """Build a net from the arrays of a file; raise InputError if they are invalid."""
    n_layers = sum(key.startswith(f"{prefix}weight") for key in arrays)
    if not 0 < n_layers <= _MOST_LAYERS:
        raise _error(path, f"has {n_layers} layers; a net has 1 to {_MOST_LAYERS}")
    try:
        return Net(
            tuple(arrays[f"{prefix}weight{number}"] for number in range(n_layers)),
            tuple(arrays[f"{prefix}bias{number}"] for number in range(n_layers)),
        )
    except KeyError as error:
        raise _error(path, f"lacks the array {error}") from None
    except ValueError as error:
        raise _error(path, str(error)) from None


def _mode_of(path: Path) -> int:
    """Return the mode of the existing file or, if there is none, the mode that the umask permits."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o666 & ~umask


def write_arrays(
    path: Path, description: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]], mode: int = 0o600
) -> None:
    """Write the file atomically; raise OSError if writing fails."""
    text = np.array(json.dumps(description, ensure_ascii=False))
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_DESCRIPTION: text}, **arrays)
        os.fchmod(file.fileno(), mode)


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Return the description and the arrays of a file; raise InputError if it is invalid.

    Arrays must contain finite float32 values.
    """
    # Compressed data is no larger than uncompressed data, apart from the zip header of each part.
    content = read_bytes(path, 2 * _LARGEST)
    if content.count(b"PK\x01\x02") > _MOST_PARTS:
        raise _error(path, f"has more than {_MOST_PARTS} parts")
    file = io.BytesIO(content)
    try:
        with zipfile.ZipFile(file) as packed:
            size = sum(part.file_size for part in packed.infolist())
        file.seek(0)
        found: dict[str, Any] = {}
        if size <= _LARGEST:
            with np.load(file, allow_pickle=False) as loaded:
                found = {key: loaded[key] for key in loaded.files}
    except Exception as error:  # zipfile, zlib, struct and numpy raise different errors for damaged files
        raise _error(path, f"is not a model or is damaged: {type(error).__name__}: {error}"[:160]) from None
    if size > _LARGEST:
        raise _error(path, f"contains {size} bytes; a model has at most {_LARGEST}")
    text = found.pop(_DESCRIPTION if _DESCRIPTION in found else _FORMER_DESCRIPTION, None)
    if text is None or text.dtype.kind != "U" or text.shape != ():
        raise _error(path, f"lacks the array {_DESCRIPTION!r}")
    try:
        description = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise _error(path, f"{_DESCRIPTION!r} is not JSON: {error}"[:160]) from None
    if not isinstance(description, dict):
        raise _error(path, f"{_DESCRIPTION!r} must be a JSON object")
    for key, array in found.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise _error(path, f"{key[:40]!r} must contain finite numbers (float32)")
    return description, found


def _error(path: Path, message: str) -> InputError:
    return InputError(str(path), 0, 0, message)


def _shown(value: object) -> str:
    return repr(value)[:60]
