"""What uid a user has, and who is an operator: as system and slurm-gpu.yaml say, asked anew each minute."""

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
    """Of a user; `uid` is None where this host knows no such user."""

    uid: int | None
    operator: bool


def right_of(user: str, operators: Operators) -> Right:
    """Asks the system, which may wait for a directory server."""
    return Right(uid_of(user), is_operator(operators, user))


class Rights:
    """Remembers what `ask` says of a user, who may wait for a directory server.

    What is a little old is used once more while a thread asks anew, so that no request waits but a user's
    first, and the first after some minutes.
    """

    def __init__(self, ask: Callable[[str], Right], monotonic: Callable[[], float]) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._known: dict[str, tuple[float, Right]] = {}
        self._asking: set[str] = set()
        self._unknown = OutageLog(log, "rights of a user could not be determined: %s", SystemClock())
        self._thread = ThreadPoolExecutor(1, "rights")

    def known(self, user: str) -> Right | None:
        """What is known, perhaps a little old; None of a user who was not asked for in the last minutes."""
        known = self._known.get(user)
        if known is None:
            return None
        until, right = known
        if self._monotonic() >= until + KEPT_S:
            return None  # so old that it says nothing: who was away for long is asked for first
        if self._monotonic() >= until and user not in self._asking:
            self._asking.add(user)
            self._thread.submit(self._again, user)
        return right

    def look(self, user: str) -> Right:
        """Ask now, and wait."""
        right = self._ask(user)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[user] = self._monotonic() + KEPT_S, right
        return right

    def close(self) -> None:
        """Ask no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _again(self, user: str) -> None:
        try:
            self.look(user)
        except Exception as error:
            self._unknown.failed(error)
        finally:
            self._asking.discard(user)
