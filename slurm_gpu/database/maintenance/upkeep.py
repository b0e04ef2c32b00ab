"""Maintain the database during the import: record the state of nodes, and drop expired data."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Retention
from slurm_gpu.database.maintenance.node_periods import Places, is_silent, store_node_periods
from slurm_gpu.database.maintenance.pruning import Pruning
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.client import SlurmNode

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
LATE_EVERY_S = 86400.0
# Newly expired rows are dropped every hour. Rows that had already expired when they arrived are dropped once
# a day.
_LATE_S = 30 * 86400


class Upkeep:
    """Periodic maintenance; call `run_once()` in each import pass."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        places: Places | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._database, self._clock = database, clock
        self._places = Places() if places is None else places
        self._retention = Retention() if retention is None else retention
        self._silent_since: dict[str, int] = {}
        self._prune_at = -math.inf
        self._late_at = -math.inf

    def run_once(
        self, nodes: Mapping[str, SlurmNode] | None, stepped: Callable[[], None] = lambda: None
    ) -> None:
        """Record the state of nodes if Slurm reports it, and prune when due."""
        now_s = int(self._clock.wall())
        if nodes:
            silent = {name for name, node in nodes.items() if is_silent(node)}
            self._silent_since = {name: self._silent_since.get(name, now_s) for name in silent}
            self._database.write(
                partial(
                    store_node_periods,
                    nodes=nodes,
                    places=self._places,
                    now_s=now_s,
                    silent_since=self._silent_since,
                )
            )
        now = self._clock.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            self._prune(now_s, stepped)

    def _prune(self, now_s: int, stepped: Callable[[], None]) -> None:
        now = self._clock.monotonic()
        late = now >= self._late_at
        if late:
            self._late_at = now + LATE_EVERY_S
        dropped = Pruning(self._database, self._retention, stepped).prune(now_s, _LATE_S if late else 0)
        if dropped:
            log.info(
                "expired data was dropped: %d timelines, %d windows, %d events, %d verdicts, %d forecasts, "
                "%d decisions",
                *(dropped.timelines, dropped.windows, dropped.events, dropped.verdicts, dropped.forecasts),
                dropped.decisions,
            )
