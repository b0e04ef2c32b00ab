"""Identify the caller of a request, and read its parameters and body."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from slurm_gpu.database.http.rate_limits import share_of
from slurm_gpu.errors import UsageError
from slurm_gpu.http.body import read_body
from slurm_gpu.http.identity import PEER_UID, Authenticator, Caller, NotAuthenticatedError, NotPermittedError
from slurm_gpu.http.networks import plain
from slurm_gpu.http.web_reader import THIS_HOST, Origin
from slurm_gpu.text.units import parse_whole
from slurm_gpu.wire.headers import MAX_BODY_BYTES, READS_ALL, READS_HEADER

CONTROLLER_TARGET = "/v1/controller"
# Requests with this header are rejected; the answer would otherwise depend on the rights of the sender, not
# of the user in the header.
FOR_USER = "X-Slurm-Gpu-User"
BODY_WITHIN_S = 30.0
# Time that a client must wait before it repeats a request.
RETRY_AFTER_S = 10


async def authenticated(authenticator: Authenticator, request: Request) -> Caller:
    """Return the caller of a request; raise the same errors as `posted`."""
    caller, _ = await posted(authenticator, request)
    return caller


async def posted(authenticator: Authenticator, request: Request) -> tuple[Caller, bytes]:
    """Return the caller and the body of a request.

    Raise NotAuthenticatedError if there is no valid credential, and HTTPException (429) if the caller exceeds
    a limit.
    """
    identify, body = await asked(authenticator, request)
    caller = await run_in_threadpool(identify)
    await share_of(request).begin(caller)
    return caller, body


async def asked(authenticator: Authenticator, request: Request) -> tuple[Callable[[], Caller], bytes]:
    """Return a function that identifies the caller, and the body of the request.

    The function may block. The body is not read if there is no credential.
    """
    if FOR_USER in request.headers:
        raise NotPermittedError(
            f"{FOR_USER} is not supported: every request has the rights of its credential's user"
        )
    uid: int | None = getattr(request.state, PEER_UID, None)
    authorization = request.headers.get("authorization")
    if uid is None and authorization is None:
        raise NotAuthenticatedError("send the header Authorization: MUNGE CREDENTIAL")
    body = await _body(request)
    origin = THIS_HOST if uid is not None else _origin(request)
    judged = partial(_judged, authenticator, request, origin)
    if uid is not None:
        return partial(judged, partial(authenticator.by_uid, uid)), body
    assert authorization is not None
    target = request.scope["raw_path"].decode("latin-1")
    if request.scope["query_string"]:
        target += "?" + request.scope["query_string"].decode("latin-1")
    vouched = partial(authenticator.by_credential, authorization, request.method, target, body, origin)
    return partial(judged, vouched), body


def _origin(request: Request) -> Origin:
    """Return the origin of a request; a peer with the server's own address is on this host."""
    if request.client is None:
        return Origin("an unknown address", is_this_host=False)
    peer, server = plain(request.client.host), request.scope.get("server")
    return Origin(peer, is_this_host=server is not None and plain(server[0]) == peer)


def _judged(
    authenticator: Authenticator, request: Request, origin: Origin, vouched: Callable[[], Caller]
) -> Caller:
    """Return the caller after checking its rights; slurm-gpuweb may write only to /v1/controller."""
    caller = vouched()
    if request.headers.get(READS_HEADER) == READS_ALL:
        authenticator.require_sees_all(caller, origin)
    if caller.is_web and request.method not in ("GET", "HEAD") and request.scope["path"] != CONTROLLER_TARGET:
        raise NotPermittedError("slurm-gpuweb may not change anything in its own name")
    return caller


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    if not is_taken(length):
        raise HTTPException(413, f"a body may have at most {MAX_BODY_BYTES} bytes; send less data at once")
    return await read_body(request, MAX_BODY_BYTES, BODY_WITHIN_S)


def is_taken(length: str) -> bool:
    """Return whether the declared length of a body is accepted."""
    try:
        parse_whole(length, 0, MAX_BODY_BYTES)
    except ValueError:
        return False
    return True


def whole_parameter(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number from `least` to `most`; raise UsageError if `text` is invalid."""
    try:
        return parse_whole(text, least, most)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def parameters(request: Request) -> dict[str, str]:
    """Return the query parameters; raise UsageError if one is repeated."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query:
            raise UsageError(f"{name!r} is given twice")
        query[name] = value
    return query
