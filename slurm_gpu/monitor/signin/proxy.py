"""A site's own reverse proxy, which says in a header who signed in there."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from starlette.types import Scope

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.http.networks import Network, is_among

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+$-]{0,255}")
"""Of users, as sites name them."""


class TrustedProxy:
    """`header` counts from these addresses; from any other it is left out, and told of in the log."""

    def __init__(self, header: str, networks: Sequence[Network], clock: Clock) -> None:
        self._header, self._networks = header.lower().encode("ascii"), networks
        self._forged = OutageLog(
            log, f"{header} is left out, as it did not come from one of trusted_proxies: %s", clock
        )
        self._unread = OutageLog(log, f"{header} cannot be understood: %s", clock)

    def named(self, scope: Scope) -> str | None:
        """The user whom the proxy names; None where it names nobody, or is none."""
        values = [value for name, value in scope["headers"] if name == self._header]
        if not values:
            return None
        host = scope["client"][0] if scope.get("client") else ""
        if not is_among(host, self._networks):
            self._forged.failed(f"it was sent by {host or 'nobody knows whom'}")
            return None
        name: str = values[0].decode("latin-1").strip()
        if len(values) > 1 or not _NAME.fullmatch(name):
            # Perhaps a part of it is what a client sent, to which the proxy added its own.
            self._unread.failed(f"{host} sent {len(values)} of it, the first {name[:80]!r}")
            return None
        return name
