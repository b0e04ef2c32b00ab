"""Define the work that slurm-gpuctld repeats after its polls of the queue."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.controller.snapshot.zone_table import ZoneTable
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.slurm.queue import CountedJob

log = logging.getLogger("slurm-gpuctld")


@dataclass(frozen=True, slots=True)
class InUse:
    """The use of the cluster at one poll; the policy is empty if none is installed."""

    policy: PolicyInForce
    snapshot: Snapshot
    by_rule: Callable[[], Mapping[str, Usage]]
    """A function that returns the use by rule, for rules that count only some jobs of their groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The last poll of the queue; if slurmctld did not answer, only `in_charge` and `running` are valid."""

    answered: bool = False
    in_charge: bool = False
    """Whether the slurmctld of this host is active."""
    running: int = 0
    """A number that changes whenever the running jobs or their nodes change."""
    jobs: Sequence[CountedJob] = ()
    policy: PolicyInForce = field(default_factory=PolicyInForce)
    facts: CountingFacts = field(default_factory=CountingFacts)
    zones: ZoneTable | None = None
    in_use: InUse | None = None


class Duty(ABC):
    """A kind of repeated work; a failure is logged once, and the work is retried when it is next due."""

    def __init__(
        self,
        clock: Clock,
        failing: str,
        works_again: str,
        *,
        every_s: float = 0.0,
        cpu: Callable[[], float] = lambda: 0.0,
        cpu_share: float = 1.0,
        background: Background | None = None,
    ) -> None:
        """Set up the work, which uses at most `cpu_share` of a core.

        `failing` is a log message with one %s for the error. With `background`, the work runs in the
        background, one task at a time, and may block.
        """
        self._clock, self._every_s = clock, every_s
        self._background = None if background is None else BackgroundTask[None](background)
        self._cpu, self._cpu_share = cpu, cpu_share
        self._outage = OutageLog(log, failing, clock, over=works_again)
        self._due_s = 0.0

    def run(self, view: QueueView) -> None:
        """Do the work if there is any and it is due."""
        try:
            has_work = self.prepare(view)
        except SlurmGpuError as error:
            self._outage.failed(error)
            return
        now_s = self._clock.monotonic()
        is_idle = self._background is None or self._background.is_free or self._background.is_done
        if not has_work or now_s < self._due_s or not is_idle:
            return
        self._due_s = now_s + self._every_s
        if self._background is None:
            self._attempt(view)
        else:
            self._background.start(lambda: self._attempt(view))

    def prepare(self, view: QueueView) -> bool:
        """Update the state from the view; return whether there is work, even if it is not due yet."""
        return view.answered and view.in_charge

    @abstractmethod
    def work(self, view: QueueView) -> None:
        """Do the work; raise SlurmGpuError on failure."""

    def reschedule(self, cpu_s: float) -> None:
        """Set the time at which the work is next due, given the CPU time that the last run used."""
        self._due_s = max(self._due_s, self._clock.monotonic() + cpu_s / self._cpu_share)

    def _attempt(self, view: QueueView) -> None:
        began_s = self._cpu()
        try:
            self.work(view)
        except Exception as error:
            if self._background is None and not isinstance(error, SlurmGpuError):
                raise
            self._outage.failed(error)
        else:
            self._outage.worked()
        self.reschedule(self._cpu() - began_s)
