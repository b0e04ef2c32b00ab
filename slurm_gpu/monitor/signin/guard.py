"""Identify the viewer before a request is answered.

Requests that another site's page may have sent are rejected.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_gpu.monitor.signin.proxy import TrustedProxy
from slurm_gpu.monitor.signin.rights import Right, Rights
from slurm_gpu.monitor.signin.sessions import Session, Sessions
from slurm_gpu.monitor.viewer import VIEWER, Viewer

# Pages of other sites cannot send this header without a preflight request.
ACTS_HEADER = "X-Slurm-Gpu"
SIGN_IN = "/signin"
# The key of the session, if there is one, in the scope of a request.
SESSION = "slurm_gpu.session"
_HARMLESS = frozenset({"GET", "HEAD"})
_ACTS = ACTS_HEADER.lower().encode()


class Cookie(NamedTuple):
    """The session cookie for the public address of slurm-gpuweb."""

    name: str
    path: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> Cookie:
        """Return the cookie for a URL. Browsers require TLS, the same host and path / for a __Host- name."""
        parts = urlsplit(url)
        secure, path = parts.scheme == "https", parts.path or "/"
        return cls("__Host-slurm-gpu" if secure and path == "/" else "slurm-gpu", path, secure)

    def header(self, value: str, max_age_s: int) -> tuple[bytes, bytes]:
        """Return the Set-Cookie header; a maximum age of 0 seconds deletes the cookie."""
        parts = [f"{self.name}={value}", f"Path={self.path}", f"Max-Age={max_age_s}", "HttpOnly"]
        parts += ["SameSite=Strict", *(["Secure"] if self.secure else [])]
        return b"set-cookie", "; ".join(parts).encode("ascii")

    def value(self, scope: Scope) -> str | None:
        """Return the value of the cookie in a request; None if the browser did not send the cookie."""
        wanted = self.name.encode()
        for header, value in scope["headers"]:
            if header == b"cookie":
                for part in value.split(b";"):
                    name, _, text = part.strip().partition(b"=")
                    if name == wanted:
                        return bytes(text).decode("latin-1")
        return None


class Guard:
    """Wraps the application, and sets VIEWER in the scope of each request; `viewer_of` reads it."""

    def __init__(
        self, app: ASGIApp, sessions: Sessions, cookie: Cookie, rights: Rights, proxy: TrustedProxy | None
    ) -> None:
        self._app, self._sessions, self._cookie = app, sessions, cookie
        self._rights, self._proxy = rights, proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._may_be_another_sites(scope):
            why = f"methods other than GET require the header {ACTS_HEADER}: 1"
            await JSONResponse({"error": why}, 403)(scope, receive, send)
            return
        session = self._session(scope)
        named = None if self._proxy is None else self._proxy.named(scope)
        if named is not None:
            right = await self._right(named)
            scope[VIEWER] = Viewer(named, right.uid, right.operator)
        elif session is not None:
            right = await self._right(session.user)
            if right.uid in (None, session.uid):
                operator = session.uid == 0 or right.operator
                scope[VIEWER] = Viewer(session.user, session.uid, operator, by_link=True)
            # The user name now belongs to another uid, so the session is not valid.
            else:
                session = None
        if session is not None:
            scope[SESSION] = session
        renewed = None if session is None else self._sessions.seen(session)
        await self._app(scope, receive, send if renewed is None else self._with_cookie(send, renewed))

    def _may_be_another_sites(self, scope: Scope) -> bool:
        if scope["method"] in _HARMLESS or (scope["path"] == SIGN_IN and scope["method"] == "POST"):
            # A POST to SIGN_IN carries a MUNGE credential, which browsers cannot create.
            return False
        return not any(name == _ACTS and value == b"1" for name, value in scope["headers"])

    def _session(self, scope: Scope) -> Session | None:
        value = self._cookie.value(scope)
        return None if value is None else self._sessions.open(value)

    async def _right(self, user: str) -> Right:
        known = self._rights.known(user)
        return await run_in_threadpool(self._rights.fetch, user) if known is None else known

    def _with_cookie(self, send: Send, session: Session) -> Send:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                # A response to a sign-in or sign-out sets its own cookie. A response that shared caches may
                # store must never contain a user's session.
                has_cookie = any(name.lower() == b"set-cookie" for name, _ in own)
                if not has_cookie and any(_is_private(name, value) for name, value in own):
                    left_s = int(session.began_s + self._sessions.lifetime_s - session.seen_s)
                    header = self._cookie.header(self._sessions.seal(session), max(1, left_s))
                    message["headers"] = [*own, header]
            await send(message)

        return add


def _is_private(name: bytes, value: bytes) -> bool:
    return name.lower() == b"cache-control" and (b"private" in value or b"no-store" in value)
