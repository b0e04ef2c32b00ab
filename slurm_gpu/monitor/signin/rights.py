"""Who is an operator: as slurm-gpu.yaml and the system's groups say, asked anew each minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slurm_gpu.database.trouble import TOLD_EACH_S

log = logging.getLogger("slurm-gpuweb")

KEPT_S = TOLD_EACH_S
_MOST = 10_000


class Rights:
    """Remembers what `is_operator` says of a user, who may wait for a directory server.

    What is old is used once more while a thread asks anew, so that no request waits but a user's first.
    """

    def __init__(self, is_operator: Callable[[str], bool], monotonic: Callable[[], float]) -> None:
        self._ask, self._monotonic = is_operator, monotonic
        self._known: dict[str, tuple[float, bool]] = {}
        self._asking: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "rights")

    def known(self, user: str) -> bool | None:
        """What is known, perhaps a little old; None of a user who was never asked for."""
        known = self._known.get(user)
        if known is None:
            return None
        until, is_operator = known
        if self._monotonic() >= until and user not in self._asking:
            self._asking.add(user)
            self._thread.submit(self._again, user)
        return is_operator

    def look(self, user: str) -> bool:
        """Ask now, and wait."""
        is_operator = self._ask(user)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[user] = self._monotonic() + KEPT_S, is_operator
        return is_operator

    def close(self) -> None:
        """Ask no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _again(self, user: str) -> None:
        try:
            self.look(user)
        except Exception:
            log.exception("whether %s is an operator could not be found out", user)
        finally:
            self._asking.discard(user)
