"""Read the body of a request with limits on size and time."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request


async def read_body(request: Request, most_bytes: int, within_s: float) -> bytes:
    """Return the body; raise HTTPException if it is too large or takes too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                body += piece
                if len(body) > most_bytes:
                    raise HTTPException(
                        413, f"a body may have at most {most_bytes} bytes; send less data at once"
                    )
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {within_s:g} s") from None
    return bytes(body)
