"""Look up a user's uid and whether they are an operator; results are refreshed every minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from slurm_gpu.clock import SystemClock
from slurm_gpu.config.site import Operators
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.http.identity import is_operator, uid_of

log = logging.getLogger("slurm-gpuweb")

KEPT_S = 60.0
_MOST = 10_000


class Right(NamedTuple):
    """The rights of a user; `uid` is None if the user does not exist on this host."""

    uid: int | None
    operator: bool


def right_of(user: str, operators: Operators) -> Right:
    """Look up the rights in the system's user database; this may wait for a directory server."""
    return Right(uid_of(user), is_operator(operators, user))


class Rights:
    """Caches the result of `ask`, which may wait for a directory server.

    A slightly outdated result is used while a thread refreshes it. Therefore, only a user's first request,
    or the first request after a pause of several minutes, waits.
    """

    def __init__(self, ask: Callable[[str], Right], monotonic: Callable[[], float]) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._known: dict[str, tuple[float, Right]] = {}
        self._asking: set[str] = set()
        self._unknown = OutageLog(log, "rights of a user could not be determined: %s", SystemClock())
        self._thread = ThreadPoolExecutor(1, "rights")

    def known(self, user: str) -> Right | None:
        """Return a user's cached rights, which may be slightly outdated.

        Return None if they are unknown, or too old because the user sent no request for several minutes.
        """
        known = self._known.get(user)
        if known is None:
            return None
        until, right = known
        if self._monotonic() >= until + KEPT_S:
            # The rights are too old: the caller must fetch them first.
            return None
        if self._monotonic() >= until and user not in self._asking:
            self._asking.add(user)
            self._thread.submit(self._refresh, user)
        return right

    def fetch(self, user: str) -> Right:
        """Fetch a user's rights now, and wait for the result."""
        right = self._ask(user)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[user] = self._monotonic() + KEPT_S, right
        return right

    def close(self) -> None:
        """Stop refreshing rights."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _refresh(self, user: str) -> None:
        try:
            self.fetch(user)
        except Exception as error:
            self._unknown.failed(error)
        finally:
            self._asking.discard(user)
