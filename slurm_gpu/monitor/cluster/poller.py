"""Reads slurm-gpudbd again and again; what cannot be read stays what it was, and grows old."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.flags import Attention
from slurm_gpu.monitor.cluster.state import PageState, make_state
from slurm_gpu.wire.answers.cluster import live_of_slurm
from slurm_gpu.wire.answers.reservation import Reservation
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import Verdicts

T = TypeVar("T")
log = logging.getLogger("slurm-gpuweb")

NODES_EVERY_S = 60.0
NODES_AGAIN_S = 5.0
"""After it failed: without them nothing is known of any GPU but who holds it."""
RESERVATIONS_EVERY_S = 15.0
RUNNING_EVERY_S = 60.0
VERDICTS_EVERY_S = 5.0
VIEWED_FOR_S = 60.0
"""A page that is open asks for something in this time."""
_LEAST_PAUSE_S = 0.5
_LOAD = 0.5
"""Looks take this part of the time at most: a slow slurm-gpudbd is asked less often."""


class _Part(Generic[T]):
    """One kind of answer, asked for again when it is due."""

    def __init__(self, every_s: float, again_s: float | None = None) -> None:
        self._every_s = every_s
        self._again_s = every_s if again_s is None else again_s
        self._due = 0.0
        self.last: T | None = None

    def look(self, now: float, ask: Callable[[], T]) -> None:
        """Ask if it is time; where that fails (it raises as `ask`) the last answer stays."""
        if now >= self._due:
            self._due = now + self._again_s
            self.last = ask()
            self._due = now + self._every_s

    def hurry(self) -> None:
        """Ask at the next look."""
        self._due = 0.0


class Poller:
    """Looks at slurm-gpudbd, and shows each state on the board. One thread calls it."""

    def __init__(
        self,
        connect: Callable[[], DatabaseClient],
        board: Board,
        cluster: str,
        racks: Mapping[str, str],
        clock: Clock,
        attention: Attention | None = None,
    ) -> None:
        self._connect, self._board, self._clock = connect, board, clock
        self._cluster, self._racks = cluster, racks
        self._attention = Attention() if attention is None else attention
        self._database: DatabaseClient | None = None
        self._nodes: _Part[Sequence[NodeReport]] = _Part(NODES_EVERY_S, NODES_AGAIN_S)
        self._reservations: _Part[Sequence[Reservation]] = _Part(RESERVATIONS_EVERY_S)
        self._running: _Part[Running] = _Part(RUNNING_EVERY_S)
        self._verdicts: _Part[Verdicts] = _Part(VERDICTS_EVERY_S)
        self._names: frozenset[str] = frozenset()
        self._viewed_s = -math.inf
        self._away = OutageLog(
            log,
            "slurm-gpudbd was not read, so that what it told last is shown: %s",
            clock,
            over="slurm-gpudbd answers again",
        )
        self._undrawn = OutageLog(
            log, "the cluster could not be drawn: %s", clock, over="the cluster is drawn again"
        )
        self.trouble: str | None = None
        """Why the last look failed, or a part of it; None while all is well."""
        self.turned_s = clock.monotonic()
        """When the last look ended."""

    def look(self) -> PageState | None:
        """Look once; None where nothing new could be read."""
        self.trouble = None
        try:
            seen = self._seen()
        except OutsideError as error:
            self.trouble = str(error)
            self._away.failed(error)
            self.close()
            return None
        finally:
            self.turned_s = self._clock.monotonic()
        self._away.worked()
        self._attention.look(seen.live_s, seen)
        before = self._board.state
        version = int(self._clock.wall() * 1000) if before is None else before.version + 1
        state = make_state(version, self._cluster, seen, self._racks, before, self._attention)
        self._board.show(state)
        return state

    def run(self, refresh_s: float, stop: threading.Event) -> None:
        """Look until `stop` is set."""
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                if self.look() is not None:
                    self._undrawn.worked()
            except Exception as error:  # an answer that cannot be understood; the next one may be
                self._undrawn.failed(error)
            took_s = self._clock.monotonic() - began
            stop.wait(max(_LEAST_PAUSE_S, refresh_s - took_s, took_s * (1 / _LOAD - 1)))
        self.close()

    def close(self) -> None:
        """Let go of the connection; the next look makes another."""
        if self._database is not None:
            self._database.close()
        self._database = None

    def _seen(self) -> DatabaseState:
        if self._database is None:
            self._database = self._connect()
        source = self._database
        now = self._clock.monotonic()
        cluster = source.cluster()
        live_s = self._clock.wall()
        if self._board.is_viewed:
            self._board.is_viewed, self._viewed_s = False, now
        live = live_of_slurm(cluster, source.live("all" if now - self._viewed_s < VIEWED_FOR_S else "none"))
        names = frozenset(live)
        if not names <= self._names:
            self._nodes.hurry()  # a node is heard of for the first time: ask what it has
        self._names = names | self._names
        self._perhaps(lambda: self._nodes.look(now, source.nodes))
        self._perhaps(lambda: self._reservations.look(now, source.reservations))
        self._perhaps(lambda: self._running.look(now, source.running))
        self._perhaps(lambda: self._verdicts.look(now, source.verdicts))
        return DatabaseState(
            cluster=cluster,
            live=live,
            live_s=live_s,
            reports=self._nodes.last or (),
            reservations=self._reservations.last,
            running=self._running.last,
            verdicts=self._verdicts.last,
        )

    def _perhaps(self, look: Callable[[], None]) -> None:
        """The page goes without what cannot be read: an older slurm-gpudbd has no /v1/running."""
        try:
            look()
        except OutsideError as error:
            self.trouble = str(error)
            log.debug("%s", error)
