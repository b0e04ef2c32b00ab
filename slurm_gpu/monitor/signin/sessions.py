"""Sign and read session cookies, which contain all data of a session."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_gpu.errors import InputError
from slurm_gpu.monitor.settings import DEFAULT_IDLE_S, DEFAULT_LIFETIME_S
from slurm_gpu.monitor.signin.revoked_sessions import RevokedSessions

KEY_BYTES = 32
_MOST_KEY_BYTES = 4096
# A cookie is renewed once its age exceeds this share of the idle limit.
_RENEWED_EACH = 0.1
# A cookie's time may be ahead of the clock by at most this, since the clock may have been set back.
_AHEAD_S = 60.0
_MOST_GENUINE = 10_000
# The maximum length of a cookie; real cookies are a tenth as long.
_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in user. Times are wall-clock times."""

    user: str
    uid: int
    id: str
    began_s: float
    seen_s: float


class Sessions:
    """Creates and reads cookies. `ended` contains sessions that ended early."""

    def __init__(
        self,
        key: bytes,
        wall: Callable[[], float],
        lifetime_s: float = DEFAULT_LIFETIME_S,
        idle_s: float = DEFAULT_IDLE_S,
        ended: RevokedSessions | None = None,
    ) -> None:
        if len(key) < KEY_BYTES:
            raise ValueError(f"a key must have at least {KEY_BYTES} bytes, not {len(key)}")
        self._key, self._wall = key, wall
        self.lifetime_s, self._idle_s = lifetime_s, idle_s
        self._ended = RevokedSessions(wall) if ended is None else ended
        self._genuine: dict[str, Session] = {}
        """Sessions by cookie with a verified signature; all requests of a page send the same cookie."""

    def begin(self, user: str, uid: int) -> Session:
        """Return a new session of a user."""
        now_s = self._wall()
        return Session(user, uid, secrets.token_urlsafe(16), now_s, now_s)

    def seal(self, session: Session) -> str:
        """Return the cookie's value for a session."""
        facts = [session.user, session.uid, session.id, session.began_s, session.seen_s]
        body = _encode(json.dumps(facts, separators=(",", ":")).encode())
        return f"{body}.{self._signature(body)}"

    def open(self, value: str) -> Session | None:
        """Return the session of a cookie; None if the cookie is forged or the session has ended."""
        session = self._genuine.get(value) or self._read(value)
        now_s = self._wall()
        if session is None or session.id in self._ended or session.seen_s > now_s + _AHEAD_S:
            return None
        if now_s >= session.began_s + self.lifetime_s or now_s >= session.seen_s + self._idle_s:
            return None
        return session

    def _read(self, value: str) -> Session | None:
        body, _, signature = value.partition(".")
        if len(value) > _LONGEST or not value.isascii():
            return None
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        session = _session(body)
        if session is not None:
            if len(self._genuine) >= _MOST_GENUINE:
                self._genuine.clear()
            self._genuine[value] = session
        return session

    def seen(self, session: Session) -> Session | None:
        """Return the session with the current time if its cookie must be renewed; None otherwise."""
        now_s = self._wall()
        due = now_s - session.seen_s >= _RENEWED_EACH * self._idle_s
        return replace(session, seen_s=now_s) if due else None

    def end(self, session: Session) -> None:
        """Revoke every cookie of this session."""
        self._ended.add(session.id, session.began_s + self.lifetime_s)

    def _signature(self, body: str) -> str:
        return _encode(hmac.digest(self._key, b"slurm-gpuweb session 1\n" + body.encode(), hashlib.sha256))


def session_key(path: Path | None) -> bytes:
    """Return the key in the file or, without a file, a random key that is valid only for this process.

    Raise InputError if the file is unreadable or too short, or if its mode or owner is unsafe.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise InputError(
            str(path), 0, 0, f"cannot be read ({error.strerror}); create it: {_how_to_make(path)}"
        ) from None
    if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
        raise InputError(str(path), 0, 0, f"other users may read it (mode {mode:04o}); run chmod 0600 {path}")
    if status.st_uid not in (0, os.geteuid()):
        raise InputError(
            str(path), 0, 0, f"belongs to uid {status.st_uid}; it must belong to slurm-gpuweb's user"
        )
    if len(key) < KEY_BYTES:
        raise InputError(
            str(path),
            0,
            0,
            f"has {len(key)} bytes, but at least {KEY_BYTES} are required; create it: {_how_to_make(path)}",
        )
    return key


def _how_to_make(path: Path) -> str:
    return f"(umask 077; head -c {KEY_BYTES} /dev/urandom > {path}), owned by slurm-gpuweb's user"


def _session(body: str) -> Session | None:
    """Decode a signed body; return None if it has the format of another version."""
    try:
        user, uid, session_id, began_s, seen_s = json.loads(_decode(body))
    except (ValueError, TypeError, binascii.Error):
        return None
    if not (isinstance(user, str) and isinstance(uid, int) and isinstance(session_id, str)):
        return None
    if not (isinstance(began_s, float | int) and isinstance(seen_s, float | int)):
        return None
    return Session(user, uid, session_id, began_s, seen_s)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
