"""What a request says: who asks, its parameters and its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from slurm_gpu.database.identity import Authenticator, Caller, NotAuthenticatedError, NotPermittedError
from slurm_gpu.database.shipment import MAX_BODY_BYTES
from slurm_gpu.errors import UsageError
from slurm_gpu.munge import SPEAKS_FOR

PEER_UID = "peer_uid"
"""Where the server leaves the uid of a Unix socket's peer, in the request's state."""
CONNECTION = "connection"
"""Where it leaves the asyncio.Transport of the connection."""
TELLS_OF_ACTS = "/v1/controller"
BODY_WITHIN_S = 30.0
_MOST_DIGITS = 20
RETRY_AFTER_S = 10
"""What whoever has to come again is told to wait."""


async def authenticated(authenticator: Authenticator, request: Request) -> Caller:
    """Who asks; raises NotAuthenticatedError."""
    identify, _ = await asked(authenticator, request)
    return await run_in_threadpool(identify)


async def asked(authenticator: Authenticator, request: Request) -> tuple[Callable[[], Caller], bytes]:
    """What finds out who the caller is, and waits for it, and the body.

    That is read only once there is a credential to check it with.
    """
    uid: int | None = getattr(request.state, PEER_UID, None)
    speaks_for = _speaks_for(request)
    authorization = request.headers.get("authorization")
    if uid is None and authorization is None:
        raise NotAuthenticatedError("send the header Authorization: MUNGE CREDENTIAL")
    body = await _body(request)
    judged = partial(_judged, authenticator, request.method, request.scope["path"], speaks_for)
    if uid is not None:
        return partial(judged, partial(authenticator.by_uid, uid)), body
    assert authorization is not None
    target = request.scope["raw_path"].decode("latin-1")
    if request.scope["query_string"]:
        target += "?" + request.scope["query_string"].decode("latin-1")
    vouched = partial(authenticator.by_credential, authorization, request.method, target, body, speaks_for)
    return partial(judged, vouched), body


def _judged(
    authenticator: Authenticator,
    method: str,
    path: str,
    speaks_for: str | None,
    vouched: Callable[[], Caller],
) -> Caller:
    """Who asks, or in whose name; slurm-gpuweb itself reads, and tells of acts."""
    caller = vouched()
    if speaks_for is not None:
        return authenticator.named_by(caller, speaks_for)
    if caller.is_web and method not in ("GET", "HEAD") and path != TELLS_OF_ACTS:
        raise NotPermittedError("slurm-gpuweb changes nothing in its own name")
    return caller


def _speaks_for(request: Request) -> str | None:
    names = request.headers.getlist(SPEAKS_FOR)
    if not names:
        return None
    if len(names) > 1 or not names[0]:
        raise UsageError(f"{SPEAKS_FOR} is given once, with a user's name")
    return names[0]


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    if not is_taken(length):
        raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes; send less at once")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes; send less at once")
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_WITHIN_S:g} s") from None
    return bytes(body)


def is_taken(length: str) -> bool:
    """Whether a body may be so long, as its header says. Python reads no number of thousands of digits."""
    return length.isdecimal() and len(length) <= _MOST_DIGITS and int(length) <= MAX_BODY_BYTES


def parameters(request: Request) -> dict[str, str]:
    """Those of the query, each once; raises UsageError."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query:
            raise UsageError(f"{name!r} is given twice")
        query[name] = value
    return query
