"""Authenticate callers by MUNGE over TCP or by the kernel over the Unix socket, and look up their rights."""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections.abc import Callable
from dataclasses import dataclass

from slurm_gpu import munge
from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Operators
from slurm_gpu.errors import MungedUnavailableError, MungeError
from slurm_gpu.http.web_reader import THIS_HOST, Origin, WebReader, WebRefusals

# Keys of a request's state: the uid of a Unix socket's peer, and the asyncio.Transport of the connection.
PEER_UID = "peer_uid"
CONNECTION = "connection"
_KEPT_S = 60.0
_MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """A system user with rights: `sees_all` to read every run in full, `writes` to send records.

    `is_web` marks slurm-gpuweb itself, which may write only audit events.
    """

    uid: int
    user: str | None
    sees_all: bool
    writes: bool
    is_web: bool = False

    def may_see(self, uid: int | None) -> bool:
        """Return whether the caller may see a run of the user `uid` in full.

        A run of an unknown uid is shown only to users who see all runs. Names are not compared, since a
        name may have been reassigned.
        """
        return self.sees_all or uid == self.uid


class NotAuthenticatedError(Exception):
    """Raised if a request has no valid credential; answered with 401."""


class NotPermittedError(Exception):
    """Raised if an identified caller lacks the required permission; answered with 403."""


class Authenticator:
    """Converts credentials to callers; `slurm_uid` returns SlurmUser's uid, or None if unknown.

    `web` determines how slurm-gpuweb is recognised. slurm-gpuweb may read everything, and shows each user
    only what the user may see.
    """

    def __init__(
        self,
        operators: Operators,
        slurm_uid: Callable[[], int | None],
        clock: Clock,
        munge_socket: str | None = None,
        web: WebReader | None = None,
    ) -> None:
        self._operators, self._slurm_uid = operators, slurm_uid
        self._web = WebReader() if web is None else web
        self.web_refusals = WebRefusals(self._web, clock)
        self._clock, self._munge_socket = clock, munge_socket
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[float, tuple[str, bool]]] = {}

    def by_credential(
        self, authorization: str, method: str, target: str, body: bytes, origin: Origin | None = None
    ) -> Caller:
        """Return the sender of a request with this Authorization header.

        Without `origin`, the sender is not recognised as slurm-gpuweb. Raise NotAuthenticatedError if the
        credential is invalid, or MungedUnavailableError if munged does not answer.
        """
        scheme, _, credential = authorization.partition(" ")
        if scheme.upper() != "MUNGE" or not credential.strip():
            raise NotAuthenticatedError("send the header Authorization: MUNGE CREDENTIAL")
        try:
            vouched = munge.decode(credential.strip(), self._munge_socket)
        except MungedUnavailableError:
            raise
        except MungeError as error:
            raise NotAuthenticatedError(str(error)) from None
        if vouched.payload != munge.request_digest(method, target, body):
            raise NotAuthenticatedError("the credential was created for another request")
        return self.by_uid(vouched.uid, origin)

    def by_uid(self, uid: int, origin: Origin | None = THIS_HOST) -> Caller:
        """Return the caller with this uid, with its rights for requests from `origin`."""
        slurm = uid == 0 or uid == self._slurm_uid()
        user, is_operator = self._known(uid)
        is_web = origin is not None and self._web.has_user(uid, user) and self._web.has_host(origin)
        if is_web and not slurm:
            return Caller(uid, user, sees_all=True, writes=False, is_web=True)
        return Caller(uid, user, sees_all=slurm or is_operator, writes=slurm)

    def require_sees_all(self, caller: Caller, origin: Origin) -> None:
        """Raise and log NotPermittedError if the caller may not see every run in full."""
        if not caller.sees_all:
            raise NotPermittedError(self.web_refusals.refuse(caller.uid, caller.user, origin))
        self.web_refusals.admit(caller.uid, origin)

    def _known(self, uid: int) -> tuple[str | None, bool]:
        """Return a user's name and whether the user is an operator, from a cache for up to a minute."""
        now = self._clock.monotonic()
        until, known = self._kept.get(uid, (now, None))
        if known is not None and until > now:
            return known
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            return None, False
        known = user, is_operator(self._operators, user)
        with self._lock:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[uid] = now + _KEPT_S, known
        return known


def uid_of(user: str) -> int | None:
    """Return the uid of a user on this host, or None if the user does not exist."""
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return None


def is_operator(operators: Operators, user: str) -> bool:
    """Return whether `operators` contains the user, or a UNIX group to which the user belongs."""
    return user in operators.users or bool(operators.unix_groups and _in_groups(user, operators.unix_groups))


def _in_groups(user: str, groups: tuple[str, ...]) -> bool:
    try:
        group_ids = set(os.getgrouplist(user, pwd.getpwnam(user).pw_gid))
    except KeyError:
        return False
    for name in groups:
        try:
            if grp.getgrnam(name).gr_gid in group_ids:
                return True
        except KeyError:
            continue  # the site file may name a group that this host lacks
    return False
