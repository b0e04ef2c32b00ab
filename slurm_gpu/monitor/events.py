"""Send server-sent events that announce a new state without its content."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.state import PageState
from slurm_gpu.monitor.viewer import ViewerOf

COMMENT_EVERY_S = 15.0
# After this time, the stream ends. The browser can reconnect only if the user is still signed in.
STREAM_S = 1800.0
STREAMS = 2000
STREAMS_OF_A_USER = 256
_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"private, no-store"),
    (b"x-accel-buffering", b"no"),
)


async def _until_disconnected(stream: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Send the stream until it ends or the client disconnects.

    The function also receives messages, because sending does not detect a disconnected client.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(stream), asyncio.create_task(disconnected())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def event_of(state: PageState) -> bytes:
    """Return the event that announces a state."""
    data = {"version": state.version, "layout": state.layout.id, "as_of_s": round(state.as_of_s(), 3)}
    return b"event: state\ndata: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class Events:
    """An ASGI application that serves GET /api/v1/events.

    A client that reads slowly misses states and receives only the newest one, so events do not queue up.
    """

    def __init__(self, board: Board, viewer_of: ViewerOf, monotonic: Callable[[], float]) -> None:
        self._board, self._viewer_of, self._monotonic = board, viewer_of, monotonic
        self._open: Counter[str] = Counter()
        self._announcement: tuple[PageState | None, bytes] = (None, b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send each new state until the client disconnects."""
        user = self._viewer_of(HTTPConnection(scope)).user
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send({"type": "http.response.body", "body": b""})
            return
        if self._open[user] >= STREAMS_OF_A_USER or self._open.total() >= STREAMS:
            raise HTTPException(503, "too many event streams are open; close a page", {"Retry-After": "10"})
        self._open[user] += 1
        try:
            await _until_disconnected(self._stream(send), receive)
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        version: int | None = None
        until = self._monotonic() + STREAM_S
        while self._monotonic() < until and not self._board.stopping:
            new = await self._board.changed(version, COMMENT_EVERY_S)
            state = self._board.state
            if self._board.stopping:
                break
            if new and state is not None:
                version = state.version
                body = self._announce(state)
            else:
                body = b":\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _announce(self, state: PageState) -> bytes:
        """Return the event for a state; all clients share one event object."""
        if self._announcement[0] is not state:
            self._announcement = state, event_of(state)
        return self._announcement[1]
