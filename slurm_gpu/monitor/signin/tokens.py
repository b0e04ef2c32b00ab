"""Issue one-time tokens for links of `slurm-gpu web`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

GOOD_FOR_S = 60.0
TOKENS_OF_A_USER = 5
# The maximum number of unused tokens. A received token is compared with all of them, because the duration of
# the comparison must reveal nothing.
MOST_TOKENS = 1000
_BYTES = 32
_LONGEST = 128


class TokenOwner(NamedTuple):
    """The user for whom a token was issued."""

    user: str
    uid: int


class _Waiting(NamedTuple):
    owner: TokenOwner
    until: float


class FullError(Exception):
    """Raised if there are too many unused tokens, which expire within a minute."""


class Tokens:
    """Issues tokens and accepts each of them once; `monotonic` returns seconds. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        """The owners of unused tokens by token digest, oldest first; the tokens themselves are not stored."""

    def issue(self, owner: TokenOwner) -> str:
        """Return a new token, valid for GOOD_FOR_S; raise FullError if there are too many.

        Only the last TOKENS_OF_A_USER tokens of a user are valid.
        """
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
        """Use up a token and return its owner; None if it is unknown, used or expired."""
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
