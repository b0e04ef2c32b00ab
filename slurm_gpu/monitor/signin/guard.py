"""Finds out who asks before anything is answered, and refuses what another site's page may have sent."""

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

ACTS_HEADER = "X-Slurm-Gpu"
"""No page of another site can send it: a browser would ask us first whether it may."""
SIGN_IN = "/signin"
SESSION = "slurm_gpu.session"
"""Where the session stands in a request's scope, where there is one."""
_HARMLESS = frozenset({"GET", "HEAD"})
_ACTS = ACTS_HEADER.lower().encode()


class Cookie(NamedTuple):
    """The session's cookie at the address by which people reach slurm-gpuweb."""

    name: str
    path: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> Cookie:
        """A browser takes a name that begins with __Host- from that very host and over TLS alone."""
        parts = urlsplit(url)
        secure, path = parts.scheme == "https", parts.path or "/"
        return cls("__Host-slurm-gpu" if secure and path == "/" else "slurm-gpu", path, secure)

    def header(self, value: str, max_age_s: int) -> tuple[bytes, bytes]:
        """Set-Cookie; 0 seconds take it away."""
        parts = [f"{self.name}={value}", f"Path={self.path}", f"Max-Age={max_age_s}", "HttpOnly"]
        parts += ["SameSite=Strict", *(["Secure"] if self.secure else [])]
        return b"set-cookie", "; ".join(parts).encode("ascii")

    def value(self, scope: Scope) -> str | None:
        """What the browser sent."""
        wanted = self.name.encode()
        for header, value in scope["headers"]:
            if header == b"cookie":
                for part in value.split(b";"):
                    name, _, text = part.strip().partition(b"=")
                    if name == wanted:
                        return bytes(text).decode("latin-1")
        return None


class Guard:
    """An application around slurm-gpuweb's: who asks stands in the scope as VIEWER, for viewer_of."""

    def __init__(
        self, app: ASGIApp, sessions: Sessions, cookie: Cookie, rights: Rights, proxy: TrustedProxy | None
    ) -> None:
        self._app, self._sessions, self._cookie = app, sessions, cookie
        self._rights, self._proxy = rights, proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._may_be_another_sites(scope):
            why = f"what is not GET needs the header {ACTS_HEADER}: 1"
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
            else:  # the name was given to somebody else, and perhaps the number as well
                session = None
        if session is not None:
            scope[SESSION] = session
        renewed = None if session is None else self._sessions.seen(session)
        await self._app(scope, receive, send if renewed is None else self._with_cookie(send, renewed))

    def _may_be_another_sites(self, scope: Scope) -> bool:
        if scope["method"] in _HARMLESS or (scope["path"] == SIGN_IN and scope["method"] == "POST"):
            return False  # who signs in there shows a credential that no browser has
        return not any(name == _ACTS and value == b"1" for name, value in scope["headers"])

    def _session(self, scope: Scope) -> Session | None:
        value = self._cookie.value(scope)
        return None if value is None else self._sessions.open(value)

    async def _right(self, user: str) -> Right:
        known = self._rights.known(user)
        return await run_in_threadpool(self._rights.look, user) if known is None else known

    def _with_cookie(self, send: Send, session: Session) -> Send:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                # Who signs in or out just now has said already what becomes of the cookie; and what a
                # shared cache may keep and give to others must never bring anybody's session with it.
                told = any(name.lower() == b"set-cookie" for name, _ in own)
                if not told and any(_is_private(name, value) for name, value in own):
                    left_s = int(session.began_s + self._sessions.lifetime_s - session.seen_s)
                    header = self._cookie.header(self._sessions.seal(session), max(1, left_s))
                    message["headers"] = [*own, header]
            await send(message)

        return add


def _is_private(name: bytes, value: bytes) -> bool:
    return name.lower() == b"cache-control" and (b"private" in value or b"no-store" in value)
