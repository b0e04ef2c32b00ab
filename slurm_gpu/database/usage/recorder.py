"""Record the cluster's usage every minute in a thread of slurm-gpudbd."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import AbstractContextManager
from functools import partial

from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.daemon.threads import running
from slurm_gpu.database.services import Services
from slurm_gpu.database.usage.sample import BIN_S, UsageBin, count_gpus
from slurm_gpu.database.usage.store import store_bins

log = logging.getLogger(__name__)

EVERY_S = 60.0
# A week of bins.
_MOST_BINS = 7 * 86400 // BIN_S


class UsageRecorder:
    """Counts GPUs and stores the means of five minutes; call `run_once` every minute.

    The current bin is stored after each sample, so that at most one sample is lost when the process ends.
    While the database does not answer, bins remain in memory.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # The bins that are not stored completely; the last one is the current bin.
        self._bins: deque[UsageBin] = deque(maxlen=_MOST_BINS)

    def run_once(self) -> None:
        """Add a sample, unless slurmctld has not answered in the last EVERY_S.

        Raise DatabaseError if it cannot be stored. The sample is then stored together with a later one.
        """
        services = self._services
        nodes, queue = services.view.nodes_now(), services.view.queue_now()
        now_s = services.clock.wall()
        if not nodes or queue is None or abs(now_s - queue.as_of_s) > EVERY_S:
            return
        current = UsageBin.at(now_s)
        if not self._bins or current.from_s != self._bins[-1].from_s:
            self._bins.append(current)
        live = services.memory.board.values()
        self._bins[-1].samples.append(count_gpus(nodes, queue.by_id.values(), live, services.min_coverage))
        services.database.write(partial(store_bins, cluster=services.cluster, bins=tuple(self._bins)))
        while len(self._bins) > 1:
            self._bins.popleft()


def recording_usage(services: Services) -> AbstractContextManager[None]:
    """Return a context within which the usage is recorded."""
    return running("usage", partial(_record, services))


def _record(services: Services, stop: threading.Event) -> None:
    recorder = UsageRecorder(services)
    outage = OutageLog(
        log,
        "the cluster's usage is not recorded: %s",
        services.clock,
        over="the cluster's usage is recorded again",
    )
    while not stop.is_set():
        try:
            recorder.run_once()
        except Exception as error:  # an error must not end the recording
            outage.failed(error)
        else:
            outage.worked()
        stop.wait(EVERY_S)
