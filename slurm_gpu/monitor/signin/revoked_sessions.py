"""Store the sessions that ended early, since a signed cookie does not show that its session has ended."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_gpu.errors import InputError
from slurm_gpu.files.atomic import write_whole

log = logging.getLogger("slurm-gpuweb")

# The file in slurm-gpuweb's state directory: {id: time at which the session would have expired}.
FILE_NAME = "signed-out.json"
MOST = 100_000


class RevokedSessions:
    """The IDs of revoked sessions, until their expiry. If `path` is given, they survive a restart.

    Thread-safe. Raises InputError if the file is unreadable, since revoked sessions would otherwise become
    valid again.
    """

    def __init__(self, wall: Callable[[], float], path: Path | None = None) -> None:
        self._wall, self._path, self._lock = wall, path, threading.Lock()
        self._until = {} if path is None else _read(path)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until

    def add(self, session_id: str, until_s: float) -> None:
        """Revoke a session. If a path was given, return only when the revocation is on disk."""
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
                        "%s cannot be written (%s): after a restart, an old cookie signs in a user who has "
                        "signed out",
                        self._path,
                        error.strerror,
                    )


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and all(isinstance(until, float | int) for until in found.values()):
            return found
        why = "has the wrong format"
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        why = "is damaged"
    raise InputError(
        str(path),
        0,
        0,
        f"{why}: remove it only together with key_file, since users who signed out would otherwise be signed "
        "in again",
    )
