"""Read JSON files from users, rejecting repeated keys and non-finite numbers.

By default, Python's `json` module accepts repeated keys and non-finite numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from slurm_gpu.errors import InputError
from slurm_gpu.files.bounded_read import read_text, refuse_many_values

# Maximum size of a file of profiles or speeds; Gavel's file of throughputs is 6 MB in size.
MOST_BYTES = 32 * 2**20


def read_json(path: Path) -> Any:
    """Read a file with unique keys and finite numbers; raise InputError if it is invalid."""
    text = read_text(path, MOST_BYTES)
    refuse_many_values(path, text, ",[{")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise InputError(str(path), error.lineno, error.colno, f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(str(path), 0, 0, "is nested too deeply") from None
    except ValueError as error:
        raise InputError(str(path), 0, 0, str(error)) from None


def number(value: Any) -> float | None:
    """Return a value of decoded JSON as a number if it is finite; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < float("inf") else None


def mapping(path: Path, where: str, value: Any, what: str) -> Mapping[str, Any]:
    """Return a JSON object; for anything else, raise InputError with the place and the expected content."""
    if not isinstance(value, dict):
        raise InputError(str(path), 0, 0, f"{where}: {shown(value)} must be {what}")
    return value


def shown(value: Any) -> str:
    """Shorten a value for an error message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} occurs twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number; leave out unmeasured values")
