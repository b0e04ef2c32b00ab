"""Send notifications to systemd (sd_notify(3)): readiness, a status line, and watchdog keep-alives."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

STATUS_EACH_S = 10.0
# Seconds until a notification is repeated if systemd's queue was full.
AGAIN_AFTER_S = 1.0
_OUT_OF_LOOP_S = 1.0


class Notifier:
    """Sends datagrams to $NOTIFY_SOCKET; does nothing if systemd did not start this process.

    The variables are removed from `environ`, so that child processes do not inherit them.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_us = environ.pop("WATCHDOG_USEC", "")
        watched_pid = environ.pop("WATCHDOG_PID", "")
        # A leading @ represents the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        ours = watched_pid in ("", str(os.getpid()))
        self._feed_each_s = int(watchdog_us) / 2e6 if watchdog_us.isdecimal() and ours else 0.0
        self._feed_at_s = 0.0 if self._address and self._feed_each_s else math.inf
        self._status_at_s = 0.0 if self._address else math.inf
        self._status = ""
        self._ready_due = False

    @property
    def listens(self) -> bool:
        """Return whether systemd receives notifications from this process."""
        return bool(self._address)

    def ready(self) -> None:
        """Notify systemd that the daemon is ready."""
        self._ready_due = not self._notify("READY=1")

    def starting(self, status: str, within_s: float) -> None:
        """Set the status line, and extend the start timeout to `within_s` from now."""
        self._notify(f"STATUS={status}\nEXTEND_TIMEOUT_USEC={within_s * 1e6:.0f}", _OUT_OF_LOOP_S)

    def turned(self, now_s: float, status: str) -> float:
        """Send a watchdog keep-alive if one is due, and return the time of the next call."""
        if self._ready_due:
            self.ready()
        if now_s >= self._feed_at_s:
            is_fed = self._notify("WATCHDOG=1")
            self._feed_at_s = now_s + (self._feed_each_s if is_fed else self._again_after_s)
        if now_s >= self._status_at_s and status != self._status and self._notify(f"STATUS={status}"):
            self._status_at_s, self._status = now_s + STATUS_EACH_S, status
        return min(self._feed_at_s, now_s + self._again_after_s) if self._ready_due else self._feed_at_s

    def stopping(self) -> None:
        """Notify systemd that the daemon is stopping."""
        self._notify("STOPPING=1", _OUT_OF_LOOP_S)

    @property
    def _again_after_s(self) -> float:
        return min(AGAIN_AFTER_S, self._feed_each_s) if self._feed_each_s else AGAIN_AFTER_S

    def _notify(self, text: str, within_s: float = 0.0) -> bool:
        """Send a notification if systemd is listening; return False if it has to be sent again."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(within_s)
                sender.sendto(text.encode(), self._address)
        except FileNotFoundError as error:
            log.debug("systemd was not notified of %s: %s", text, error)
        except OSError as error:
            log.debug("systemd was not notified of %s: %s; the notification is repeated later", text, error)
            return False
        return True
