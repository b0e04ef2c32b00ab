"""Limit connections, so that no sender uses all of them or occupies one without sending a request."""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog

log = logging.getLogger(__name__)

# The uid of a Unix socket's peer, or the address of a TCP peer; None if the peer has closed the connection.
Sender = int | str | None


@dataclass(slots=True)
class ConnectionLimits:
    """Limits that a server enforces on its clients."""

    request_within_s: float
    """Maximum time until the headers are complete.

    The time starts when the connection opens or, for a later request, at the request's first byte.
    """
    body_within_s: float | None
    """Maximum time for the body of a request; None if the application limits it."""
    keep_alive_s: int
    always_of_sender: int
    share_of_sender: int
    """One sender may have the free connections divided by this number, or `always_of_sender` if greater."""
    is_unlimited: Callable[[Sender], bool]
    """A function that returns whether a sender may have any number of connections."""
    most_of_sender: float = math.inf
    connections: int = 4000
    more_on_unix: int = 500
    """Additional connections that only users of this host may have."""
    backlog_s: float = math.inf
    """A connection that has waited in the kernel for longer than this is closed."""
    unread_ms: int = 60_000
    """Time in milliseconds after which a client that does not read its answer is disconnected."""

    def room(self, family: int) -> int:
        """Return the maximum number of open connections; it is higher for Unix sockets."""
        return self.connections + (self.more_on_unix if family == socket.AF_UNIX else 0)

    def most(self, free: int) -> float:
        """Return the number of connections that one sender may have while `free` connections are free."""
        return min(self.most_of_sender, max(self.always_of_sender, free // self.share_of_sender))


class Senders:
    """Counts the connections of each sender."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: Counter[Sender] = Counter()
        self._crowded = OutageLog(log, "%s", SystemClock())

    def come(self, sender: Sender, free: int) -> bool:
        """Count a connection until `go` is called, and return whether it may be accepted."""
        self._open[sender] += 1
        if sender is None:
            return False
        most = self._limits.most(free)
        if self._open[sender] <= most or self._limits.is_unlimited(sender):
            return True
        self._crowded.failed(f"{sender} has more than {most} connections")
        return False

    def go(self, sender: Sender) -> None:
        """Remove one connection from the count."""
        self._open[sender] -= 1
        if not self._open[sender]:
            del self._open[sender]
