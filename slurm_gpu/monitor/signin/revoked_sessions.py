"""Sessions that ended before their time: what a signed cookie alone cannot tell."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_gpu.errors import InputError
from slurm_gpu.files.atomic import write_whole

log = logging.getLogger("slurm-gpuweb")

FILE_NAME = "signed-out.json"
"""In slurm-gpuweb's state directory: {id: when the session would have ended by itself}."""
MOST = 100_000


class RevokedSessions:
    """By id, until their lifetime is over; with `path` they are known to the next process as well.

    For several threads. Raises InputError for a file that cannot be read: sessions would come back.
    """

    def __init__(self, wall: Callable[[], float], path: Path | None = None) -> None:
        self._wall, self._path, self._lock = wall, path, threading.Lock()
        self._until = {} if path is None else _read(path)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until

    def add(self, session_id: str, until_s: float) -> None:
        """The session has ended; returns once that is on disk, where it is kept there."""
        with self._lock:
            now_s = self._wall()
            kept = {one: until for one, until in self._until.items() if until > now_s}
            if len(kept) >= MOST:
                del kept[next(iter(kept))]
            kept[session_id] = until_s
            self._until = kept
            if self._path is not None:
                try:
                    write_whole(self._path, json.dumps(kept))
                except OSError as error:
                    log.warning(
                        "%s cannot be written (%s): who signed out is signed in again by an old cookie after "
                        "a restart",
                        self._path,
                        error.strerror,
                    )


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and all(isinstance(until, float | int) for until in found.values()):
            return found
        why = "holds something else"
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        why = "is damaged"
    raise InputError(
        str(path), 0, 0, f"{why}: who signed out would be signed in again; remove it, and key_file with it"
    )
