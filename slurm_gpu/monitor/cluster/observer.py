"""Poll the cluster for one user, and keep the last state while slurm-gpudbd is unreachable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slurm_gpu.alerts.alert import Alert
from slurm_gpu.errors import DatabaseError, SlurmGpuError
from slurm_gpu.monitor.cluster.attention import Attention, recorded_alerts, verdict_alerts, worst_first
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.wire.answers.cluster import live_of_slurm
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.runs import NodeReport

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

T = TypeVar("T")
# The interval for reading devices, which rarely change, and records, which arrive every five minutes.
SELDOM_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The data read from slurm-gpudbd at `at_s` (this host's wall clock), and the resulting alerts."""

    at_s: float
    seen: DatabaseState
    alerts: Sequence[Alert] | None
    """Alerts, the most serious first; None if jobs were not watched long enough and records are missing."""


class Observer:
    """Observes slurm-gpudbd. `connect` opens a client; `wall` and `monotonic` are clocks in seconds."""

    def __init__(
        self,
        connect: Callable[[], DatabaseClient],
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._connect, self._wall, self._monotonic = connect, wall, monotonic
        self._attention = Attention()
        self._began_s: float | None = None
        self._seldom_s: float | None = None
        self._reports: Sequence[NodeReport] = ()
        self._running: Running | None = None
        self.last: Observed | None = None
        self.error: str | None = None
        """The error of the last poll; None if it succeeded."""

    def poll(self) -> None:
        """Poll once; if this fails and no earlier poll succeeded, raise SlurmGpuError."""
        now = self._monotonic()
        try:
            with self._connect() as source:
                cluster = source.cluster()
                live = live_of_slurm(cluster, source.live())
                verdicts = _or_none(source.verdicts)
                if self._seldom_s is None or now - self._seldom_s >= SELDOM_S:
                    reports, self._running = _or_none(source.nodes), _or_none(source.running)
                    if reports is not None:  # otherwise, keep the last reports and retry at the next poll
                        self._reports, self._seldom_s = reports, now
        except SlurmGpuError as error:
            if self.last is None:
                raise
            self.error = str(error)
            return
        at_s = self._wall()
        if self._began_s is None:
            self._began_s = now
        seen = DatabaseState(
            cluster=cluster,
            live=live,
            live_s=at_s,
            reports=self._reports,
            reservations=None,
            running=self._running,
            verdicts=verdicts,
        )
        self._attention.update(at_s, seen)
        rules = self._attention.rules
        watched = now - self._began_s >= rules.window_s
        found = self._attention.alerts(at_s) if watched else recorded_alerts(at_s, seen, rules)
        alerts_of_verdicts = verdict_alerts(seen)
        alerts = (
            None
            if found is None and not alerts_of_verdicts
            else worst_first([*(found or ()), *alerts_of_verdicts])
        )
        self.last = Observed(at_s=at_s, seen=seen, alerts=alerts)
        self.error = None


def _or_none(ask: Callable[[], T]) -> T | None:
    """Return the answer; None if slurm-gpudbd is too old for the request or its database does not answer."""
    try:
        return ask()
    except DatabaseError:
        return None
