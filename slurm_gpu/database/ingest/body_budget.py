"""Limit the memory of request bodies, per sender and in total.

Only received bytes count, so announcing a long body reserves no memory. A request that exceeds the limit is
read to its end, discarded, and answered with Retry-After.
"""

from __future__ import annotations

import logging
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.request import RETRY_AFTER_S
from slurm_gpu.http.identity import PEER_UID
from slurm_gpu.wire.headers import MAX_BODY_BYTES

log = logging.getLogger(__name__)

# Limit for all bodies together. A body is included from its first byte until the request is answered. A
# shipment of records has about 10 KiB, and at most 1 MiB.
MOST_BYTES = 256 << 20
# A peer may use the free memory divided by this number; connections are limited in the same way.
_SHARE_OF_ROOM = 4
_ALWAYS_OF_A_PEER = 8 * MAX_BODY_BYTES


class RequestBody:
    """The body of one request; call `grow` for each chunk, and `close` at least once at the end."""

    def __init__(self, bodies: BodyBudget, peer: object) -> None:
        self._bodies, self._peer = bodies, peer
        self._n_bytes = 0
        self.refusal: HTTPException | None = None
        """The error with which the body was rejected, or None; no part of a rejected body may be kept."""

    def grow(self, n_bytes: int) -> bool:
        """Count more received bytes and return whether they may be kept."""
        if self.refusal is None:
            self.refusal = self._bodies.take(self._peer, n_bytes)
            if self.refusal is None:
                self._n_bytes += n_bytes
            else:
                self.close()
        return self.refusal is None

    def require_room(self) -> None:
        """Raise HTTPException (503 or 429) if the body was rejected."""
        if self.refusal is not None:
            raise self.refusal

    def close(self) -> None:
        """Release the memory after the request was answered or abandoned."""
        self._bodies.give_back(self._peer, self._n_bytes)
        self._n_bytes = 0


class BodyBudget:
    """Counts the memory of bodies by sender, which is a uid on this host or an address. Not thread-safe."""

    def __init__(self, clock: Clock, share: float = 1.0) -> None:
        """Limit this process to `share` of MOST_BYTES."""
        self._share = share
        self._of: Counter[object] = Counter()
        self.n_bytes = 0
        """Number of bytes in memory from all senders."""
        self._crowded = OutageLog(log, "request bodies are dropped: %s", clock)

    def begin(self, peer: object) -> RequestBody:
        """Start counting the body of a new request."""
        return RequestBody(self, peer)

    def take(self, peer: object, n_bytes: int) -> HTTPException | None:
        """Reserve memory for a peer, or return the error to raise if a limit would be exceeded."""
        most = int(self._share * MOST_BYTES)
        free = most - self.n_bytes
        most_of_peer = max(_ALWAYS_OF_A_PEER, free // _SHARE_OF_ROOM)
        if n_bytes > free:
            return self._refused(503, f"requests of {most >> 20} MiB are already in memory")
        n_of_peer = self._of.get(peer, 0)
        if n_of_peer + n_bytes > most_of_peer:
            return self._refused(429, f"requests of {n_of_peer >> 20} MiB from {peer} are already in memory")
        self._of[peer] += n_bytes
        self.n_bytes += n_bytes
        return None

    def give_back(self, peer: object, n_bytes: int) -> None:
        """Release memory that a peer had reserved."""
        self.n_bytes -= n_bytes
        self._of[peer] -= n_bytes
        if not self._of[peer]:
            del self._of[peer]

    def _refused(self, status: int, why: str) -> HTTPException:
        self._crowded.failed(why)
        return HTTPException(status, why, {"Retry-After": str(RETRY_AFTER_S)})


class BoundedBodies:
    """ASGI middleware that applies the budget to request bodies."""

    def __init__(self, app: ASGIApp, bodies: BodyBudget) -> None:
        self._app, self._bodies = app, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        client = scope.get("client")
        body = self._bodies.begin(scope.get("state", {}).get(PEER_UID, client[0] if client else None))

        async def counted() -> Message:
            message = await receive()
            while message["type"] == "http.request" and not body.grow(len(message.get("body", b""))):
                if not message.get("more_body", False):
                    body.require_room()
                message = await receive()
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            body.close()
