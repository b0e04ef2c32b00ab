"""Store the state of a daemon in a JSON file below Slurm's StateSaveLocation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.files.atomic import write_whole

State = TypeVar("State")


def read_state(path: Path, from_json: Callable[[Any], State], advice: str) -> State | None:
    """Return the state in the file `path`, or None if the file does not exist.

    Raise OutsideError if the file cannot be read; if its content is invalid, the message ends with `advice`.
    """
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutsideError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise OutsideError(f"{path} cannot be read ({error!r}){advice}") from error


def write_state(path: Path, plain: Any, owner_uid: int, mode: int = 0o600) -> None:
    """Write the state to disk before returning, in a directory that SlurmUser (`owner_uid`) owns.

    Raise OutsideError if that fails.
    """
    with outside(path):
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write_whole(path, json.dumps(plain) + "\n", mode=mode, owner_uid=owner_uid)
        if os.geteuid() == 0:
            os.chown(path.parent, owner_uid, -1)
