"""Run the watch in a thread of slurm-gpudbd."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.daemon.threads import running
from slurm_gpu.database.live.verdict_board import ShownVerdicts
from slurm_gpu.database.services import Services

log = logging.getLogger(__name__)

RETRY_S = 10.0


def watching(services: Services) -> AbstractContextManager[None]:
    """Return a context within which the watch runs."""
    return running("watch", partial(_watch, services))


def _watch(services: Services, stop: threading.Event) -> None:
    outage = OutageLog(
        log,
        "the watch over running jobs cannot start: %s",
        services.clock,
        over="the watch over running jobs has started",
    )
    while not stop.is_set():
        try:
            run = _load(services, stop)
        except Exception as error:  # a lack of file descriptors, for example, may be temporary
            outage.failed(error)
            stop.wait(RETRY_S)
        else:
            outage.worked()
            run()
            return


def _load(services: Services, stop: threading.Event) -> Callable[[], None]:
    """Import the watch and return its loop; an earlier import of NumPy would delay the server's start."""
    from slurm_gpu.database.verdicts.accused import Accused
    from slurm_gpu.database.verdicts.snapshots import VerdictSnapshots
    from slurm_gpu.database.verdicts.watch import JobWatch, run_watch
    from slurm_gpu.diagnose.case import DiagnosisThresholds

    def show(shown: ShownVerdicts) -> None:
        services.verdicts.shown = shown

    memory, clock = services.memory, services.clock
    ask = memory.wants.ask
    snapshots = VerdictSnapshots(services.cluster, services.database, services.view, memory, clock, ask)
    accused = Accused(snapshots.statements, snapshots.index_of)
    watch = JobWatch(snapshots, accused, DiagnosisThresholds(min_coverage=services.min_coverage))
    return lambda: run_watch(watch, show, stop, clock)
