"""What slurm-gpudbd does beside the import: write down what nodes are, and drop detail that is too old."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from sqlalchemy import Column, Connection, Delete, Update, delete, null, select, update

from slurm_gpu.clock import Clock
from slurm_gpu.config import Retention
from slurm_gpu.database.engine import Database
from slurm_gpu.database.nodeperiods import Places, is_unheard, store_node_periods
from slurm_gpu.database.schema import event, run_device, run_window
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.database.store import get_watermark, set_watermark

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
LATE_EVERY_S = 86400.0
# Each hour what became too old since the last one is looked at, and once a day what came this late.
_LATE_S = 30 * 86400
_ROWS_AT_ONCE = 1000
_PRUNED = "pruned:timelines"
"""The watermark up to which records have no timelines any more."""


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
        self._late_at = -math.inf

    def run_once(self, stepped: Callable[[], None] = lambda: None) -> None:
        """Note what nodes are now, as far as Slurm says, and prune when it is time.

        `stepped` is called whenever some rows are pruned: the first time they may be years'.
        """
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
            self._prune(now_s, stepped)

    def _prune(self, now_s: int, stepped: Callable[[], None]) -> None:
        windows = self._prune_rows(
            delete(run_window), run_window.c.at_s, 0, now_s - int(self._retention.windows_s), stepped
        )
        events = self._prune_rows(
            delete(event), event.c.at_s, 0, now_s - int(self._retention.events_s), stepped
        )
        timelines = self._prune_timelines(now_s - int(self._retention.timelines_s), stepped)
        if timelines or windows or events:
            dropped = timelines, windows, events
            log.info("dropped %d timelines, %d windows and %d events that were too old", *dropped)

    def _prune_timelines(self, before_s: int, stepped: Callable[[], None]) -> int:
        """Of records, which stay: so it is written down up to where they are without."""
        with self._database.reading() as connection:
            done_s = get_watermark(connection, _PRUNED)
        from_s = 0 if done_s is None else done_s
        now = self._clock.monotonic()
        if now >= self._late_at:
            self._late_at = now + LATE_EVERY_S
            from_s -= _LATE_S
        statement = update(run_device).where(run_device.c.timeline.is_not(None)).values(timeline=null())
        n = self._prune_rows(statement, run_device.c.last_s, from_s, before_s, stepped)
        # Also where it lay ahead, by a clock that was set or a shorter retention.
        self._database.write(lambda connection: set_watermark(connection, _PRUNED, before_s))
        return n

    def _prune_rows(
        self,
        statement: Delete | Update,
        at: Column[int],
        from_s: int,
        before_s: int,
        stepped: Callable[[], None],
    ) -> int:
        """Carry it out on all rows that were `at` a time in between; returns on how many."""
        n = 0
        next_s: int | None = from_s
        while next_s is not None:
            stepped()
            work = partial(_prune_some, statement=statement, at=at, from_s=next_s, before_s=before_s)
            n_some, next_s = self._database.write(work)
            n += n_some
        return n


def _prune_some(
    connection: Connection, statement: Delete | Update, at: Column[int], from_s: int, before_s: int
) -> tuple[int, int | None]:
    """The first rows of those, and where the others begin; None where there are none.

    No statement may take longer than a database is waited for, nor hold rows for which nodes' shipments wait.
    """
    in_order = select(at).where(at >= from_s, at < before_s).order_by(at)
    last_s = connection.execute(in_order.offset(_ROWS_AT_ONCE - 1).limit(1)).scalar()
    end_s = before_s if last_s is None else last_s + 1
    done = connection.execute(statement.where(at >= from_s, at < end_s))
    return done.rowcount, None if last_s is None else end_s
