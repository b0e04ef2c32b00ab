"""Poll Slurm's accounting for ended runs in the periods of GPU-hour limits.

slurmdbd may need minutes to return a month of runs on a large cluster. It is therefore queried in the
background: once for all runs since the start of the periods, then regularly for recently ended runs.
"""

from __future__ import annotations

import logging

from slurm_gpu.clock import SystemClock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.queue.amounts import CountingFacts, mgpu_of_total
from slurm_gpu.controller.queue.gpu_hours import GpuRun
from slurm_gpu.controller.queue.usage import UsageOwner
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun, SlurmClient

log = logging.getLogger("slurm-gpuctld")

EVERY_S = 600.0
_RETRY_S = 60.0
# After an outage of slurmdbd, slurmctld reports to it late.
_OVERLAP_S = 3600
_AT_ONCE_S = 86400


class EndedRunsPoll:
    """Queries ended runs without blocking the watcher."""

    def __init__(self, client: SlurmClient, background: Background) -> None:
        self._client = client
        self._asking = BackgroundTask[list[GpuRun]](background)
        self._began_s = 0.0
        self._received_until_s: float | None = None
        self._next_s = 0.0
        self._outage = OutageLog(
            log, "GPU-hours could not be updated: %s", SystemClock(), over="GPU-hours are updated again"
        )
        self.complete = False
        """Whether all runs since the start of the periods have been received."""

    def poll(self, first_s: int, now_s: float, facts: CountingFacts) -> list[GpuRun]:
        """Return the runs received since the last call; `first_s` is the start of the longest period."""
        if now_s < self._began_s - _OVERLAP_S:
            # The clock was set far back: earlier answers may cover other periods.
            self._received_until_s, self._next_s, self.complete = None, 0.0, False
            self._asking.drop()
        if self._asking.is_free and now_s >= self._next_s:
            since_s = first_s if self._received_until_s is None else int(self._received_until_s) - _OVERLAP_S
            self._began_s = now_s
            self._asking.start(lambda: self._read(since_s, int(now_s), facts))
        if not self._asking.is_done:
            return []
        try:
            runs = self._asking.take()
        except SlurmError as error:
            self._next_s = now_s + _RETRY_S
            self._outage.failed(error)
            return []
        self._outage.worked()
        self._received_until_s, self._next_s, self.complete = self._began_s, now_s + EVERY_S, True
        return runs

    def _read(self, since_s: int, now_s: int, facts: CountingFacts) -> list[GpuRun]:
        runs = []
        # A query of a month may take slurmdbd longer than the timeout.
        for begin_s in range(since_s, now_s, _AT_ONCE_S):
            end_s = begin_s + _AT_ONCE_S
            rows = self._client.accounting(begin_s, end_s if end_s < now_s else None)
            runs += [run for row in rows if (run := _run(row, facts)) is not None]
        return runs


def _run(row: AccountingRun, facts: CountingFacts) -> GpuRun | None:
    if row.start_s is None or row.end_s is None or row.uid is None:
        return None
    owner = UsageOwner(row.uid, row.user, row.account, row.qos, row.partition)
    # After a resize, a row may have the start of the whole run; the row's own part starts at its submit time.
    begin_s = max(row.start_s, row.submit_s)
    return GpuRun(row.job_id, owner, mgpu_of_total(row.tres_allocated, facts), begin_s, row.end_s)
