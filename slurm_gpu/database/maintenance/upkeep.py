"""What slurm-gpudbd does beside the import: write down what nodes are, and drop detail that is too old."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Retention
from slurm_gpu.database.maintenance.node_periods import Places, is_unheard, store_node_periods
from slurm_gpu.database.maintenance.pruning import Pruning
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.client import SlurmNode

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
LATE_EVERY_S = 86400.0
# Each hour what became too old since the last one is looked at, and once a day what came this late.
_LATE_S = 30 * 86400


class Upkeep:
    """`run_once()` belongs to each pass of the import."""

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
        self._unheard_since: dict[str, int] = {}
        self._prune_at = -math.inf
        self._late_at = -math.inf

    def run_once(
        self, nodes: Mapping[str, SlurmNode] | None, stepped: Callable[[], None] = lambda: None
    ) -> None:
        """Note what nodes are now, unless Slurm does not say it, and prune when it is time.

        `stepped` is called whenever some rows are pruned: the first time they may be years'.
        """
        now_s = int(self._clock.wall())
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
        now = self._clock.monotonic()
        late = now >= self._late_at
        if late:
            self._late_at = now + LATE_EVERY_S
        dropped = Pruning(self._database, self._retention, stepped).prune(now_s, _LATE_S if late else 0)
        if dropped:
            log.info(
                "too old, and dropped: %d timelines, %d windows, %d events, %d verdicts, %d forecasts, "
                "%d decisions",
                *(dropped.timelines, dropped.windows, dropped.events, dropped.verdicts, dropped.forecasts),
                dropped.decisions,
            )
