"""Prepare an answer once: its headers, its ETag, and its body with and without gzip."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable

from starlette.types import Message, Receive, Scope, Send

Header = tuple[bytes, bytes]

_LEVEL = 6
_LARGE_BYTES = 1 << 18
# The gzip level for large bodies. A higher level takes many milliseconds longer and saves only a few bytes.
_LARGE_LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS
# A body that is shorter than this fits into one packet without compression.
_LEAST_BYTES = 400
JSON = b"application/json"
CSV = b"text/csv; charset=utf-8"
SVG = b"image/svg+xml"
OCTETS = b"application/octet-stream"


class CachedResponse:
    """An ASGI application that serves a prepared body, or status 304 if the client already has it."""

    __slots__ = ("_not_modified", "_packed", "_plain", "body", "etag", "packed")

    def __init__(self, body: bytes, media: bytes, more: Iterable[Header] = ()) -> None:
        self.body = body
        packed = _pack(body)
        self.packed = packed if len(packed) < len(body) else None
        self.etag = b'"' + hashlib.sha256(body).hexdigest()[:20].encode() + b'"'
        common = [
            (b"etag", self.etag),
            (b"cache-control", b"private, no-cache"),
            (b"vary", b"Accept-Encoding, Cookie"),
            *more,
        ]
        kind = (b"content-type", media)
        self._plain: Message = _start(200, [*common, kind, _length(body)])
        self._packed: Message | None = (
            None
            if self.packed is None
            else _start(200, [*common, kind, (b"content-encoding", b"gzip"), _length(self.packed)])
        )
        self._not_modified: Message = _start(304, common)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body in the encoding that the request accepts."""
        takes_gzip = False
        for name, value in scope["headers"]:
            if name == b"if-none-match":
                if self.etag in value:
                    await _send(send, self._not_modified, b"")
                    return
            elif name == b"accept-encoding":
                takes_gzip = b"gzip" in value and b"gzip;q=0" not in value
        if takes_gzip and self._packed is not None and self.packed is not None:
            await _send(send, self._packed, self.packed)
        else:
            await _send(send, self._plain, self.body)


async def _send(send: Send, start: Message, body: bytes) -> None:
    # Middleware appends to the list of headers that it receives, so it must receive a copy.
    await send({**start, "headers": list(start["headers"])})
    await send({"type": "http.response.body", "body": body})


def _start(status: int, headers: list[Header]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _length(body: bytes) -> Header:
    return b"content-length", str(len(body)).encode()


def _pack(body: bytes) -> bytes:
    if len(body) < _LEAST_BYTES:
        return body
    packer = zlib.compressobj(_LARGE_LEVEL if len(body) > _LARGE_BYTES else _LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()
