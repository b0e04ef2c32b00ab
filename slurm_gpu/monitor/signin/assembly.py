"""Assemble the sign-in components as configured in slurm-gpuweb.yaml and slurm-gpu.yaml."""

from __future__ import annotations

import logging
from pathlib import Path

from starlette.routing import Route
from starlette.types import ASGIApp

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.http.identity import Authenticator
from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.settings import WebSettings
from slurm_gpu.monitor.signin.guard import Cookie, Guard
from slurm_gpu.monitor.signin.pages import SignInPages
from slurm_gpu.monitor.signin.proxy import TrustedProxy
from slurm_gpu.monitor.signin.revoked_sessions import FILE_NAME, RevokedSessions
from slurm_gpu.monitor.signin.rights import Rights, right_of
from slurm_gpu.monitor.signin.sessions import Sessions, session_key
from slurm_gpu.monitor.signin.tokens import Tokens

log = logging.getLogger("slurm-gpuweb")


class SignIn:
    """Builds the sign-in. The application must include `routes` and be wrapped by `guarded`.

    Revoked sessions are stored in `state`. Raises InputError if the key file or the list of revoked sessions
    is invalid.
    """

    def __init__(
        self, config: SiteConfig, settings: WebSettings, clock: Clock, state: Path | None = None
    ) -> None:
        url = settings.url or config.web
        ended = None
        # Without a key file, no session outlasts this process.
        if settings.session.key_file is not None:
            if state is None:
                log.warning(
                    "STATE_DIRECTORY is not set: after a restart, an old cookie signs in a user who has "
                    "signed out"
                )
            ended = RevokedSessions(clock.wall, None if state is None else state / FILE_NAME)
        self._sessions = Sessions(
            session_key(settings.session.key_file),
            clock.wall,
            settings.session.lifetime_s,
            settings.session.idle_s,
            ended,
        )
        self._cookie = Cookie.of(url or settings.base_url)
        self._rights = Rights(lambda user: right_of(user, config.operators), clock.monotonic)
        self._proxy = (
            TrustedProxy(settings.user_header, settings.trusted_proxies, clock)
            if settings.user_header is not None
            else None
        )
        self._pages = SignInPages(
            Authenticator(config.operators, lambda: None, clock, config.munge_socket),
            Tokens(clock.monotonic),
            self._sessions,
            self._cookie,
            url,
            clock.wall,
            FooterLinks(settings.contact, settings.documentation),
        )

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints and of the page."""
        return self._pages.routes()

    def guarded(self, app: ASGIApp) -> Guard:
        """Wrap the application so that it identifies the viewer."""
        return Guard(app, self._sessions, self._cookie, self._rights, self._proxy)

    def close(self) -> None:
        """Stop the sign-in threads."""
        self._rights.close()
