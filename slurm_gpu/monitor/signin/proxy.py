"""Identify users by a header that the site's reverse proxy sets."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from starlette.types import Scope

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.http.networks import Network, is_among

log = logging.getLogger(__name__)

# Matches the user names that are accepted from a proxy.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+$-]{0,255}")


class TrustedProxy:
    """Accepts `header` from these addresses; a header from another address is ignored and logged."""

    def __init__(self, header: str, networks: Sequence[Network], clock: Clock) -> None:
        self._header, self._networks = header.lower().encode("ascii"), networks
        self._forged = OutageLog(
            log, f"{header} is ignored, because it did not come from one of trusted_proxies: %s", clock
        )
        self._unread = OutageLog(log, f"{header} is invalid: %s", clock)

    def named(self, scope: Scope) -> str | None:
        """Return the user that the proxy names; None if it names no user or is not trusted."""
        values = [value for name, value in scope["headers"] if name == self._header]
        if not values:
            return None
        host = scope["client"][0] if scope.get("client") else ""
        if not is_among(host, self._networks):
            self._forged.failed(f"it was sent by {host or 'an unknown address'}")
            return None
        name: str = values[0].decode("latin-1").strip()
        if len(values) > 1 or not _NAME.fullmatch(name):
            # The client may have sent the header too, and the proxy may have appended its own value.
            self._unread.failed(f"{host} sent {len(values)} values, of which the first is {name[:80]!r}")
            return None
        return name
