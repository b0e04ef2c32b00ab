"""What slurm-gpudbd does beside the import: write down what nodes are, and drop detail that is too old."""

from __future__ import annotations

import logging
import math
from functools import partial

from sqlalchemy import Connection, delete, null, update

from slurm_gpu.clock import Clock
from slurm_gpu.config import Retention
from slurm_gpu.database.engine import Database
from slurm_gpu.database.nodeperiods import Places, is_unheard, store_node_periods
from slurm_gpu.database.schema import event, run_device, run_window
from slurm_gpu.database.slurmview import SlurmView

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
# After the first time only what became too old since then is looked at, and what came this late.
_LATE_S = 30 * 86400


class Upkeep:
    """`run_once()` belongs to each pass of the import."""

    def __init__(
        self,
        database: Database,
        view: SlurmView,
        clock: Clock,
        places: Places | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._database, self._view, self._clock = database, view, clock
        self._places = Places() if places is None else places
        self._retention = Retention() if retention is None else retention
        self._unheard_since: dict[str, int] = {}
        self._prune_at = -math.inf
        self._pruned_before_s: int | None = None

    def run_once(self) -> None:
        """Note what nodes are now, as far as Slurm says, and prune when it is time."""
        now_s = int(self._clock.wall())
        nodes = self._view.nodes()
        if nodes:
            unheard = {name for name, node in nodes.items() if is_unheard(node)}
            self._unheard_since = {name: self._unheard_since.get(name, now_s) for name in unheard}
            self._database.write(
                partial(
                    store_node_periods,
                    nodes=nodes,
                    places=self._places,
                    now_s=now_s,
                    unheard_since=self._unheard_since,
                )
            )
        now = self._clock.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            self._prune(now_s)

    def _prune(self, now_s: int) -> None:
        before_s = now_s - int(self._retention.timelines_s)
        after_s = 0 if self._pruned_before_s is None else self._pruned_before_s - _LATE_S
        windows_before_s = now_s - int(self._retention.windows_s)
        events_before_s = now_s - int(self._retention.events_s)

        def work(connection: Connection) -> tuple[int, int, int]:
            old = run_device.c.last_s >= after_s, run_device.c.last_s < before_s
            with_timeline = update(run_device).where(*old, run_device.c.timeline.is_not(None))
            timelines = connection.execute(with_timeline.values(timeline=null()))
            windows = connection.execute(delete(run_window).where(run_window.c.at_s < windows_before_s))
            events = connection.execute(delete(event).where(event.c.at_s < events_before_s))
            return timelines.rowcount, windows.rowcount, events.rowcount

        dropped = self._database.write(work)
        self._pruned_before_s = before_s
        if any(dropped):
            log.info("dropped %d timelines, %d windows and %d events that were too old", *dropped)
