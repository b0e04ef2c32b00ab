"""Looks at the cluster again and again for one person, and keeps what was seen while slurm-gpudbd is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slurm_gpu.alerts.alert import Alert
from slurm_gpu.errors import DatabaseError, SlurmGpuError
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.flags import Attention, recorded_alerts, verdict_alerts, worst_first
from slurm_gpu.wire.answers.cluster import live_of_slurm
from slurm_gpu.wire.answers.running import Running
from slurm_gpu.wire.answers.runs import NodeReport

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

T = TypeVar("T")
SELDOM_S = 60.0
"""Which devices nodes have changes rarely, and records come each five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What slurm-gpudbd said at one moment, by the wall clock here, and what is to be thought of it."""

    at_s: float
    seen: DatabaseState
    flags: Sequence[Alert] | None
    """The worst first; None: it was neither watched for long enough nor told by records."""


class Observer:
    """`connect` opens slurm-gpudbd, `wall` and `monotonic` are clocks in seconds."""

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
        self.trouble: str | None = None
        """Why there is nothing newer; None while there is."""

    def look(self) -> None:
        """Ask once; raises SlurmGpuError only where there never was an answer."""
        now = self._monotonic()
        try:
            with self._connect() as source:
                cluster = source.cluster()
                live = live_of_slurm(cluster, source.live())
                verdicts = _perhaps(source.verdicts)
                if self._seldom_s is None or now - self._seldom_s >= SELDOM_S:
                    reports, self._running = _perhaps(source.nodes), _perhaps(source.running)
                    if (
                        reports is not None
                    ):  # else they stay what they were, and are asked for at the next look
                        self._reports, self._seldom_s = reports, now
        except SlurmGpuError as error:
            if self.last is None:
                raise
            self.trouble = str(error)
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
        self._attention.look(at_s, seen)
        rules = self._attention.rules
        watched = now - self._began_s >= rules.window_s
        found = self._attention.alerts(at_s) if watched else recorded_alerts(at_s, seen, rules)
        told = verdict_alerts(seen)
        flags = None if found is None and not told else worst_first([*(found or ()), *told])
        self.last = Observed(at_s=at_s, seen=seen, flags=flags)
        self.trouble = None


def _perhaps(ask: Callable[[], T]) -> T | None:
    """None of an older slurm-gpudbd, and where its database does not answer."""
    try:
        return ask()
    except DatabaseError:
        return None
