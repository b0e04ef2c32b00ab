"""Recognise requests of slurm-gpuweb by its system user and its host."""

from __future__ import annotations

import logging
import pwd
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.http.networks import Network, is_among

log = logging.getLogger(__name__)

DEFAULT_WEB_USER = "slurm-gpu-web"
REPORTED_FOR_S = 600.0
MOST_REFUSALS = 16


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a request; `address` is None for the Unix socket."""

    address: str | None = None
    is_this_host: bool = True

    def __str__(self) -> str:
        return "this host" if self.address is None else self.address


THIS_HOST = Origin()


@dataclass(frozen=True, slots=True)
class WebReader:
    """`web_user` and `web_hosts` in slurm-gpudbd.yaml; `user` is a name on slurm-gpudbd's host, or a uid."""

    user: str | int | None = None
    hosts: Sequence[Network] = ()

    def has_user(self, uid: int, user: str | None) -> bool:
        """Return whether the user is slurm-gpuweb's system user, which is never root."""
        if uid == 0 or self.user is None:
            return False
        return uid == self.user if isinstance(self.user, int) else user == self.user

    def has_host(self, origin: Origin) -> bool:
        """Return whether slurm-gpuweb may send requests from `origin`."""
        return origin.is_this_host or (origin.address is not None and is_among(origin.address, self.hosts))


@dataclass(frozen=True, slots=True)
class WebRefusal:
    """The rejection of a sender that claimed to be slurm-gpuweb but may not read everything."""

    uid: int
    user: str | None
    address: str | None
    at_s: float
    why: str
    write: str
    """The settings in slurm-gpudbd.yaml that would admit the sender."""


class WebRefusals:
    """The last rejection of each sender within REPORTED_FOR_S. Thread-safe."""

    def __init__(self, reader: WebReader, clock: Clock) -> None:
        self._reader, self._clock, self._lock = reader, clock, threading.Lock()
        self._last: dict[tuple[int, str | None], WebRefusal] = {}

    def refuse(self, uid: int, user: str | None, origin: Origin) -> str:
        """Record a rejection, log it unless this was done recently, and return the message for the sender."""
        refusal = _refusal(self._reader, uid, user, origin, self._clock.wall())
        sender = uid, origin.address
        with self._lock:
            self._drop_old()
            is_new = self._last.pop(sender, None) is None
            if len(self._last) >= MOST_REFUSALS:
                del self._last[next(iter(self._last))]
            self._last[sender] = refusal
        named = f"uid {uid}" if user is None else f"uid {uid} ({user})"
        message = f"{named} from {origin} may not read everything, which slurm-gpuweb requires: {refusal.why}"
        remedy = (
            f"only if it really is slurm-gpuweb (any user can claim to be it), write {refusal.write} into "
            "slurm-gpudbd.yaml and restart slurm-gpudbd"
        )
        if is_new:
            log.warning("a sender that claims to be slurm-gpuweb was rejected: %s; %s", message, remedy)
        return f"{message}; {remedy}"

    def admit(self, uid: int, origin: Origin) -> None:
        """Remove the rejection of this sender, which may now read everything."""
        if self._last:
            with self._lock:
                self._last.pop((uid, origin.address), None)

    def recent(self) -> list[WebRefusal]:
        """Return the rejections within REPORTED_FOR_S, oldest first."""
        with self._lock:
            self._drop_old()
            return list(self._last.values())

    def _drop_old(self) -> None:
        since_s = self._clock.wall() - REPORTED_FOR_S
        self._last = {sender: one for sender, one in self._last.items() if one.at_s >= since_s}


def _refusal(reader: WebReader, uid: int, user: str | None, origin: Origin, at_s: float) -> WebRefusal:
    why, write = [], []
    if not reader.has_user(uid, user):
        why.append(f"web_user is {'null' if reader.user is None else reader.user}")
        write.append(f"web_user: {uid}")
    if not reader.has_host(origin):
        why.append(f"web_hosts does not contain {origin}")
        others = "".join(f"{network}, " for network in reader.hosts)
        write.append(f"web_hosts: [{others}{origin}]")
    return WebRefusal(uid, user, origin.address, at_s, " and ".join(why), " and ".join(write))


def unknown_user(reader: WebReader) -> str | None:
    """Return the name of slurm-gpuweb's user if it does not exist on this host.

    slurm-gpuweb is rejected in this case. The result is None if slurm-gpudbd.yaml does not mention
    slurm-gpuweb, since the site may not run it.
    """
    if not isinstance(reader.user, str) or (reader.user == DEFAULT_WEB_USER and not reader.hosts):
        return None
    try:
        pwd.getpwnam(reader.user)
    except KeyError:
        return reader.user
    return None


def warn_of_unknown_user(reader: WebReader) -> None:
    """Log a warning if slurm-gpuweb's user does not exist on this host."""
    if (user := unknown_user(reader)) is not None:
        log.warning(
            "web_user: %s is not a user of this host, so slurm-gpuweb is rejected: write the user, or the "
            "uid, of slurm-gpuweb's process into slurm-gpudbd.yaml, then restart slurm-gpudbd",
            user,
        )
