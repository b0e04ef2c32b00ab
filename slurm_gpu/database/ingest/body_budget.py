"""How much of requests' bodies is in memory at once: each is bounded, and so are all together.

What counts is what has come, not what a header promises: who only promises takes nothing from others. A
request that finds no room is read to its end, thrown away as it comes, and told when to come again.
"""

from __future__ import annotations

import logging
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.request import MAX_BODY_BYTES, RETRY_AFTER_S
from slurm_gpu.http.identity import PEER_UID

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""Of all, from their first byte to their answers: a shipment of records is some 10 KiB, of 1 MiB at most."""
_SHARE_OF_ROOM = 4
"""A peer may hold this part of the room that is left, as with connections."""
_ALWAYS_OF_A_PEER = 8 * MAX_BODY_BYTES


class Body:
    """Of one request: count it with `grow`, and in the end `close` it, be it twice."""

    def __init__(self, bodies: Bodies, peer: object) -> None:
        self._bodies, self._peer = bodies, peer
        self._n_bytes = 0
        self.refusal: HTTPException | None = None
        """Why there is no room for it, once there was none: nothing of it may be kept."""

    def grow(self, n_bytes: int) -> bool:
        """So much more has come; whether it may be kept."""
        if self.refusal is None:
            self.refusal = self._bodies.take(self._peer, n_bytes)
            if self.refusal is None:
                self._n_bytes += n_bytes
            else:
                self.close()
        return self.refusal is None

    def require_room(self) -> None:
        """Raises HTTPException, 503 or 429, where there was none."""
        if self.refusal is not None:
            raise self.refusal

    def close(self) -> None:
        """It is answered, or nobody waits any more."""
        self._bodies.give_back(self._peer, self._n_bytes)
        self._n_bytes = 0


class Bodies:
    """All that are in memory, by who sends them: a uid of this host, or an address; in the loop alone."""

    def __init__(self, clock: Clock, share: float = 1.0) -> None:
        """`share` is the part of MOST_BYTES that this process may take."""
        self._share = share
        self._of: Counter[object] = Counter()
        self.n_bytes = 0
        """Of all of them."""
        self._crowded = OutageLog(log, "bodies of requests are not kept: %s", clock)

    def begin(self, peer: object) -> Body:
        """One more, of which nothing has come yet."""
        return Body(self, peer)

    def take(self, peer: object, n_bytes: int) -> HTTPException | None:
        """Keep so much more of a peer's; returns why not, where there is no room."""
        most = int(self._share * MOST_BYTES)
        free = most - self.n_bytes
        most_of_peer = max(_ALWAYS_OF_A_PEER, free // _SHARE_OF_ROOM)
        if n_bytes > free:
            return self._refused(503, f"requests of {most >> 20} MiB are being taken in already")
        n_of_peer = self._of.get(peer, 0)
        if n_of_peer + n_bytes > most_of_peer:
            return self._refused(429, f"requests of {n_of_peer >> 20} MiB from {peer} are under way already")
        self._of[peer] += n_bytes
        self.n_bytes += n_bytes
        return None

    def give_back(self, peer: object, n_bytes: int) -> None:
        """So much less."""
        self.n_bytes -= n_bytes
        self._of[peer] -= n_bytes
        if not self._of[peer]:
            del self._of[peer]

    def _refused(self, status: int, why: str) -> HTTPException:
        self._crowded.failed(why)
        return HTTPException(status, why, {"Retry-After": str(RETRY_AFTER_S)})


class BoundedBodies:
    """An ASGI application around another, whose requests have bodies within these bounds."""

    def __init__(self, app: ASGIApp, bodies: Bodies) -> None:
        self._app, self._bodies = app, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
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
