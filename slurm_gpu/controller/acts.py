"""Telling slurm-gpudbd what was done to the cluster, beside the watcher: it may be away for long."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.config import SiteConfig
from slurm_gpu.database.results import Act
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.policy.peers import this_host

log = logging.getLogger("slurm-gpuctld")

_RETRY_S = 60.0
_KEPT = 100
"""Acts that wait to be told, at most: as many as slurm-gpudbd takes at once."""
_AT_THE_END_S = 5.0

Send = Callable[[list[Act]], None]


class Acts:
    """A queue of acts. What cannot be told before slurm-gpuctld ends is lost to slurm-gpudbd, and logged."""

    def __init__(self, clock: Clock, send: Send) -> None:
        self._clock, self._send = clock, send
        self._waiting: deque[Act] = deque(maxlen=_KEPT)
        self._sender: threading.Thread | None = None
        self._next_s = 0.0
        self._is_away = False

    def add(self, act: str, subject: str, why: str, old: str, new: str, evidence: Any = None) -> None:
        """Log an act, and tell it as soon as may be."""
        log.info("%s: %s (%s)", act, subject, why)
        self._waiting.append(
            Act(
                id=uuid.uuid4().hex, at_s=int(self._clock.wall()), host=this_host(), act=act, subject=subject,
                why=why, old=old, new=new, evidence=evidence,
            )
        )  # fmt: skip
        self._next_s = 0.0

    def poll(self) -> None:
        """Begin to tell what waits, unless that is being done or failed just now; never waits."""
        if not self._waiting or self._clock.monotonic() < self._next_s:
            return
        if self._sender is None or not self._sender.is_alive():
            self._next_s = self._clock.monotonic() + _RETRY_S
            self._sender = threading.Thread(target=self._tell, name="acts", daemon=True)
            self._sender.start()

    def close(self) -> None:
        """Tell what waits, for a few seconds at most."""
        self._next_s = 0.0
        self.poll()
        if self._sender is not None:
            self._sender.join(_AT_THE_END_S)
        if self._waiting:
            log.warning("slurm-gpudbd was not told of %d acts", len(self._waiting))

    def _tell(self) -> None:
        acts = list(self._waiting)
        try:
            self._send(acts)
        except SlurmGpuError as error:
            if not self._is_away:
                log.warning("slurm-gpudbd could not be told what was done: %s; it is tried again", error)
            self._is_away = True
            return
        self._is_away = False
        for act in acts:
            if act in self._waiting:
                self._waiting.remove(act)


def sender(config: SiteConfig) -> Send:
    """Tells the site's slurm-gpudbd."""

    def send(acts: list[Act]) -> None:
        # Only now: httpx takes memory that who never acts does not need.
        from slurm_gpu.database.client import DatabaseClient

        with DatabaseClient(config) as database:
            database.tell_acts(acts)

    return send
