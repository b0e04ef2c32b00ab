"""One-time tokens: what a link of `slurm-gpu web` carries."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

GOOD_FOR_S = 60.0
TOKENS_OF_A_USER = 5
MOST_TOKENS = 1000
"""Waiting at once: each is looked at when one comes back, so that how long that takes tells nothing."""
_BYTES = 32
_LONGEST = 128


class TokenOwner(NamedTuple):
    """Whose token it is."""

    user: str
    uid: int


class _Waiting(NamedTuple):
    owner: TokenOwner
    until: float


class FullError(Exception):
    """Too many tokens wait; in a minute there are fewer."""


class Tokens:
    """Hands tokens out and takes each back once; `monotonic` is in seconds. For several threads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        """By digest, the oldest first: what is in memory opens nothing."""

    def issue(self, owner: TokenOwner) -> str:
        """A new one, good for GOOD_FOR_S; of a user's the last TOKENS_OF_A_USER count. Raises FullError."""
        token = secrets.token_urlsafe(_BYTES)
        with self._lock:
            now = self._drop_old()
            own = [digest for digest, item in self._waiting.items() if item.owner.uid == owner.uid]
            for digest in own[: max(0, len(own) - TOKENS_OF_A_USER + 1)]:
                del self._waiting[digest]
            if len(self._waiting) >= MOST_TOKENS:
                raise FullError
            self._waiting[_digest(token)] = _Waiting(owner, now + GOOD_FOR_S)
        return token

    def take(self, token: str) -> TokenOwner | None:
        """Whose it is, once; None for one that is not known, or not any more."""
        if len(token) > _LONGEST:
            return None
        wanted = _digest(token)
        with self._lock:
            self._drop_old()
            found: bytes | None = None
            for digest in self._waiting:
                if hmac.compare_digest(digest, wanted):
                    found = digest
            return None if found is None else self._waiting.pop(found).owner

    def _drop_old(self) -> float:
        now = self._monotonic()
        self._waiting = {digest: item for digest, item in self._waiting.items() if item.until > now}
        return now


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
