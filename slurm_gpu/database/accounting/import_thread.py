"""Run the import in a thread, and tune Python for slurm-gpudbd and its workers."""

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

# Each step of a request waits this long for Python's lock while another thread computes. Parsing Slurm's
# answer with 10,000 jobs takes more than a second; with the default of 5 ms, requests would be delayed for
# almost as long.
_SWITCH_S = 0.0005
# Number of new objects that triggers a search for reference cycles. With the default of 700, the
# rows that wait to be stored are scanned repeatedly; these scans take an eighth of a first import's time.
_GARBAGE_AFTER = 10_000


def tune_python() -> None:
    """Tune Python for many threads that run while one thread stores a million rows."""
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # imported modules remain loaded
    gc.set_threshold(_GARBAGE_AFTER)


class ImportThread:
    """Runs the import in a thread of this process."""

    def __init__(self, importer: Importer) -> None:
        self._importer, self._stop = importer, threading.Event()
        self._thread = threading.Thread(
            target=importer.run_until, args=(self._stop,), name="import", daemon=True
        )

    def runs(self) -> bool:
        """Return whether the thread is alive."""
        return self._thread.is_alive()

    @contextlib.contextmanager
    def running(self, gives_way: Callable[[], bool]) -> Iterator[None]:
        """Run the import within the context.

        Data that was not committed is imported again after the next start.
        """
        self._importer.gives_way = gives_way
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(timeout=1)  # the thread may be waiting for Slurm


def make_importer(config: SiteConfig, database: Database, view: SlurmView, clock: Clock) -> Importer:
    """Return the importer for the site's configuration."""
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
