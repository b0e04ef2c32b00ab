"""What slurm-gpudbd and its workers are made of alike."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.accounting.cluster_check import ClusterCheck
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.maintenance.upkeep import Upkeep
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.sacctmgr import Sacctmgr

_SWITCH_S = 0.0005
"""For so long each step of an answer waits for Python's lock while another thread computes. One does so for a
second and more when Slurm tells of 10,000 jobs: with the usual 5 ms that holds up as many nodes."""
_GARBAGE_AFTER = 10_000
"""So many new objects bring about a search for cycles. With the usual 700, thousands of rows on their way
into the database are gone through again and again, which takes an eighth of a first import."""


def tune_python() -> None:
    """For many threads, of which one may have a million rows to store."""
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # what was imported stays
    gc.set_threshold(_GARBAGE_AFTER)


class ImportThread:
    """The import, in a thread of this process."""

    def __init__(self, importer: Importer) -> None:
        self._importer, self._stop = importer, threading.Event()
        self._thread = threading.Thread(
            target=importer.run_until, args=(self._stop,), name="import", daemon=True
        )

    def runs(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @contextlib.contextmanager
    def going_on(self, gives_way: Callable[[], bool]) -> Iterator[None]:
        """Until it is left, or a moment longer: what a pass has not committed, the next one reads again."""
        self._importer.gives_way = gives_way
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(timeout=1)  # it may be waiting for Slurm


def make_importer(config: SiteConfig, database: Database, view: SlurmView, clock: Clock) -> Importer:
    """As the site has it."""
    places = Places.of(config)
    return Importer(
        database,
        view,
        clock,
        config.cluster,
        config.import_interval_s,
        config.sampling.min_coverage,
        Upkeep(database, clock, places, config.retention),
        places,
        ClusterCheck(config.cluster, view, clock, Sacctmgr().clusters),
    )
