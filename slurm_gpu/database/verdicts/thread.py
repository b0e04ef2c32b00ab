"""The watch in a thread of slurm-gpudbd."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from slurm_gpu.database.live.verdict_board import ShownVerdicts
from slurm_gpu.database.services import Services


@contextlib.contextmanager
def watching(services: Services) -> Iterator[None]:
    """Until it is left, or a moment longer."""
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(services, stop), name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=1)  # it may be waiting for the database


def _watch(services: Services, stop: threading.Event) -> None:
    # Numpy takes longer to import than all else that answers requests.
    from slurm_gpu.database.verdicts.accused import Accused
    from slurm_gpu.database.verdicts.snapshots import VerdictSnapshots
    from slurm_gpu.database.verdicts.watch import JobWatch, run_watch
    from slurm_gpu.diagnose.case import DiagnosisThresholds

    def show(shown: ShownVerdicts) -> None:
        services.verdicts.shown = shown

    memory, clock = services.memory, services.clock
    ask = memory.wants.ask
    looks = VerdictSnapshots(services.cluster, services.database, services.view, memory, clock, ask)
    accused = Accused(looks.statements, looks.index_of)
    watch = JobWatch(looks, accused, DiagnosisThresholds(min_coverage=services.min_coverage))
    run_watch(watch, show, stop, clock)
