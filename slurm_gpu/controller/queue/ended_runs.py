"""Runs of this month that ended before slurm-gpuctld looked, from Slurm's accounting.

slurmdbd may take minutes for a month of a large cluster. So it is asked beside the watcher, once back to the
beginning of the periods, and from then on now and again for what ended lately.
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
_OVERLAP_S = 3600
"""slurmctld may tell slurmdbd late, after an outage of the latter."""
_AT_ONCE_S = 86400


class EndedRunsPoll:
    """Asks for what ended, without ever keeping the watcher waiting."""

    def __init__(self, client: SlurmClient, background: Background) -> None:
        self._client = client
        self._asking = BackgroundTask[list[GpuRun]](background)
        self._began_s = 0.0
        self._told_until_s: float | None = None
        self._next_s = 0.0
        self._outage = OutageLog(
            log, "GPU-hours are not up to date: %s", SystemClock(), over="GPU-hours are up to date again"
        )
        self.complete = False
        """Whether everything since the beginning of the periods has been told."""

    def poll(self, first_s: int, now_s: float, facts: CountingFacts) -> list[GpuRun]:
        """What has come in since the last call; `first_s` is the beginning of the longest period."""
        if now_s < self._began_s - _OVERLAP_S:
            # The clock was set far back: what was told until then may be of other periods.
            self._told_until_s, self._next_s, self.complete = None, 0.0, False
            self._asking.drop()
        if self._asking.is_free and now_s >= self._next_s:
            since_s = first_s if self._told_until_s is None else int(self._told_until_s) - _OVERLAP_S
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
        self._told_until_s, self._next_s, self.complete = self._began_s, now_s + EVERY_S, True
        return runs

    def _read(self, since_s: int, now_s: int, facts: CountingFacts) -> list[GpuRun]:
        runs = []
        # A question about a month may take slurmdbd longer than it is waited for.
        for begin_s in range(since_s, now_s, _AT_ONCE_S):
            end_s = begin_s + _AT_ONCE_S
            rows = self._client.accounting(begin_s, end_s if end_s < now_s else None)
            runs += [run for row in rows if (run := _run(row, facts)) is not None]
        return runs


def _run(row: AccountingRun, facts: CountingFacts) -> GpuRun | None:
    if row.start_s is None or row.end_s is None or row.uid is None:
        return None
    owner = UsageOwner(row.uid, row.user, row.account, row.qos, row.partition)
    # A row after a resize may have the start of the whole run; it was submitted when it began.
    begin_s = max(row.start_s, row.submit_s)
    return GpuRun(row.job_id, owner, mgpu_of_total(row.tres_allocated, facts), begin_s, row.end_s)
