"""Serve the endpoints for signing in and out, and the page that a link of `slurm-gpu web` opens."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slurm_gpu.errors import MungedUnavailableError
from slurm_gpu.http.body import read_body
from slurm_gpu.http.identity import Authenticator, Caller, NotAuthenticatedError
from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.signin.guard import SESSION, SIGN_IN, Cookie
from slurm_gpu.monitor.signin.sessions import Session, Sessions
from slurm_gpu.monitor.signin.tokens import GOOD_FOR_S, FullError, TokenOwner, Tokens

log = logging.getLogger("slurm-gpuweb")

_MOST_BYTES = 4096
_BODY_WITHIN_S = 10.0
PAGE = "signin.html"
_MEDIA = {
    PAGE: "text/html; charset=utf-8",
    "signin.css": "text/css; charset=utf-8",
    "signin.js": "text/javascript; charset=utf-8",
}


class SignInPages:
    """The sign-in endpoints. `url` is the public address without a trailing slash; None disables links."""

    def __init__(
        self,
        authenticator: Authenticator,
        tokens: Tokens,
        sessions: Sessions,
        cookie: Cookie,
        url: str | None,
        wall: Callable[[], float],
        links: FooterLinks,
    ) -> None:
        self._authenticator, self._tokens, self._sessions = authenticator, tokens, sessions
        self._cookie, self._url, self._wall, self._links = cookie, url, wall, links

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints and of the page."""
        return [
            Route(SIGN_IN, self.page, methods=["GET"]),
            Route(SIGN_IN, self.link, methods=["POST"]),
            Route("/signin/token", self.token, methods=["POST"]),
            Route("/signin/{name}", self.page, methods=["GET"]),
            Route("/signout", self.sign_out, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Serve GET /signin and the files of its page."""
        name = request.path_params.get("name", PAGE)
        if name not in _MEDIA:
            raise HTTPException(404, f"{name!r} does not exist")
        headers = {"Cache-Control": "no-cache"}
        return Response(self._file(name), headers=headers, media_type=_MEDIA[name])

    def _file(self, name: str) -> bytes:
        text = _text_of(name)
        return (text.replace("LINKS\n", self._links.html()) if name == PAGE else text).encode()

    async def link(self, request: Request) -> Response:
        """Serve POST /signin: return a one-time link to a caller with a credential for this request."""
        authorization = request.headers.get("authorization")
        if authorization is None:
            raise _not_vouched("send the header Authorization: MUNGE CREDENTIAL, as `slurm-gpu web` does")
        body = await read_body(request, _MOST_BYTES, _BODY_WITHIN_S)
        try:
            caller = await run_in_threadpool(
                self._authenticator.by_credential, authorization, "POST", SIGN_IN, body
            )
        except NotAuthenticatedError as error:
            raise _not_vouched(str(error)) from None
        except MungedUnavailableError as error:
            raise HTTPException(503, str(error), {"Retry-After": "10"}) from None
        return self._link(caller, _text(body, "web"))

    def _link(self, caller: Caller, web: str) -> Response:
        if self._url is None:
            raise HTTPException(
                403,
                "slurm-gpuweb has no public address, so it cannot check that the credential is for it:"
                " write url: in slurm-gpuweb.yaml, or web: in slurm-gpu.yaml on its host",
            )
        if web != self._url:
            raise HTTPException(
                403,
                f"this is {self._url}, but the credential is for {web}: correct web: in slurm-gpu.yaml",
            )
        if caller.user is None:
            raise HTTPException(
                403,
                f"uid {caller.uid} has no user name on slurm-gpuweb's host: "
                f"getent passwd {caller.uid} must print one there",
            )
        try:
            token = self._tokens.issue(TokenOwner(caller.user, caller.uid))
        except FullError:
            raise HTTPException(503, "too many unused links exist", {"Retry-After": "60"}) from None
        answer = {"url": f"{web}{SIGN_IN}#{token}", "until_s": int(self._wall() + GOOD_FOR_S)}
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    async def token(self, request: Request) -> Response:
        """Serve POST /signin/token: begin a session for the owner of a link's token."""
        owner = self._tokens.take(_text(await read_body(request, _MOST_BYTES, _BODY_WITHIN_S), "token"))
        if owner is None:
            raise HTTPException(401, "this link has already been used, or is older than a minute")
        session = request.scope.get(SESSION)
        if isinstance(session, Session) and session.uid != owner.uid:
            # Another user's link must not replace this session, since the signed-in user might not notice.
            raise HTTPException(403, f"you are signed in as {session.user}: sign out first")
        log.info("%s signed in from %s", owner.user, request.client.host if request.client else "?")
        opened = self._sessions.begin(owner.user, owner.uid)
        header = self._cookie.header(self._sessions.seal(opened), int(self._sessions.lifetime_s))
        return _with(JSONResponse({"user": owner.user}, headers={"Cache-Control": "no-store"}), header)

    async def sign_out(self, request: Request) -> Response:
        """Serve POST /signout: end the session, and invalidate every copy of its cookie."""
        session = request.scope.get(SESSION)
        if isinstance(session, Session):
            await run_in_threadpool(self._sessions.end, session)
            log.info("%s signed out from %s", session.user, request.client.host if request.client else "?")
        return _with(Response(status_code=204), self._cookie.header("", 0))


def _with(response: Response, header: tuple[bytes, bytes]) -> Response:
    response.raw_headers.append(header)
    return response


def _not_vouched(why: str) -> HTTPException:
    return HTTPException(401, why, {"WWW-Authenticate": "MUNGE"})


def _text(body: bytes, key: str) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    text = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not text:
        raise HTTPException(400, f'the body must be {{"{key}": TEXT}}')
    return text


@cache
def _text_of(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text("utf-8")
