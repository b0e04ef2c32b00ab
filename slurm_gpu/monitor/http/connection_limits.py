"""How many connections each address has: however many it opens, others find room."""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog

log = logging.getLogger(__name__)

ALWAYS = 16
"""As many as a browser or two open."""
_PART = 2
"""Of the room that is left: of 4,000 connections one address can take a third, and five leave 500."""


class Senders:
    """Who comes from this host may have all: a reverse proxy, and whoever works here, have one address."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._crowded = OutageLog(log, "%s", SystemClock())

    def come(self, address: str | None, free: int) -> bool:
        """One more, which is to go in any case; whether it may stay where there is room for so many more."""
        address = address or ""
        self._open[address] += 1
        most = max(ALWAYS, free // _PART)
        if self._open[address] <= most or _is_here(address):
            return True
        self._crowded.failed(f"{address or 'a sender that has gone'} has more than {most} connections")
        return False

    def go(self, address: str | None) -> None:
        """One less."""
        address = address or ""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def _is_here(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return (known if mapped is None else mapped).is_loopback
