"""Poll slurm-gpudbd. If data cannot be read, the last values and their times are kept."""

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
from slurm_gpu.monitor.cluster.attention import Attention
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.state import PageState, make_state
from slurm_gpu.wire.answers.cluster import live_of_slurm
from slurm_gpu.wire.answers.reservation import Reservation
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import Verdicts

T = TypeVar("T")
log = logging.getLogger("slurm-gpuweb")

NODES_EVERY_S = 60.0
# The interval after a failure is short, because without a list of devices, only allocations can be shown.
NODES_AGAIN_S = 5.0
RESERVATIONS_EVERY_S = 15.0
RUNNING_EVERY_S = 60.0
VERDICTS_EVERY_S = 5.0
# An open page sends at least one request within this time.
VIEWED_FOR_S = 60.0
_LEAST_PAUSE_S = 0.5
# The maximum share of time spent on polls; a slow slurm-gpudbd is therefore polled less often.
_LOAD = 0.5


class _Part(Generic[T]):
    """One kind of answer, which is requested at intervals."""

    def __init__(self, every_s: float, again_s: float | None = None) -> None:
        self._every_s = every_s
        self._again_s = every_s if again_s is None else again_s
        self._due = 0.0
        self.last: T | None = None

    def refresh(self, now: float, ask: Callable[[], T]) -> None:
        """Request a new answer if one is due. If `ask` fails, raise its error and keep the last answer."""
        if now >= self._due:
            self._due = now + self._again_s
            self.last = ask()
            self._due = now + self._every_s

    def expire(self) -> None:
        """Request a new answer at the next poll."""
        self._due = 0.0


class Poller:
    """Polls slurm-gpudbd and shows each state on the board; only one thread may call it."""

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
        self._unreachable = OutageLog(
            log,
            "slurm-gpudbd cannot be read, so the last state is shown: %s",
            clock,
            over="slurm-gpudbd answers again",
        )
        self._undrawn = OutageLog(
            log, "the cluster could not be drawn: %s", clock, over="the cluster is drawn again"
        )
        self.error: str | None = None
        """The error of the last poll or of one of its requests; None if all succeeded."""
        self.last_poll_s = clock.monotonic()
        """The monotonic time at which the last poll ended."""

    def poll(self) -> PageState | None:
        """Poll once and return the new state; None if slurm-gpudbd cannot be read."""
        self.error = None
        try:
            seen = self._seen()
        except OutsideError as error:
            self.error = str(error)
            self._unreachable.failed(error)
            self.close()
            return None
        finally:
            self.last_poll_s = self._clock.monotonic()
        self._unreachable.worked()
        self._attention.update(seen.live_s, seen)
        before = self._board.state
        version = int(self._clock.wall() * 1000) if before is None else before.version + 1
        state = make_state(version, self._cluster, seen, self._racks, before, self._attention)
        self._board.show(state)
        return state

    def run(self, refresh_s: float, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                if self.poll() is not None:
                    self._undrawn.worked()
            except Exception as error:  # for example, an answer cannot be decoded
                self._undrawn.failed(error)
            took_s = self._clock.monotonic() - began
            stop.wait(max(_LEAST_PAUSE_S, refresh_s - took_s, took_s * (1 / _LOAD - 1)))
        self.close()

    def close(self) -> None:
        """Close the connection; the next poll opens a new one."""
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
            # A node appeared for the first time: request its devices.
            self._nodes.expire()
        self._names = names | self._names
        self._optional(lambda: self._nodes.refresh(now, source.nodes))
        self._optional(lambda: self._reservations.refresh(now, source.reservations))
        self._optional(lambda: self._running.refresh(now, source.running))
        self._optional(lambda: self._verdicts.refresh(now, source.verdicts))
        return DatabaseState(
            cluster=cluster,
            live=live,
            live_s=live_s,
            reports=self._nodes.last or (),
            reservations=self._reservations.last,
            running=self._running.last,
            verdicts=self._verdicts.last,
        )

    def _optional(self, request: Callable[[], None]) -> None:
        """Run a request whose answer is optional, since an older slurm-gpudbd has no /v1/running."""
        try:
            request()
        except OutsideError as error:
            self.error = str(error)
            log.debug("%s", error)
