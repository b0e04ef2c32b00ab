"""Cache the suspected GPUs, derived from the evidence in the `verdict` table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slurm_gpu.alerts.suspects import Place, Statement, Suspect, SuspectThresholds, drain, suspects
from slurm_gpu.wire.answers.verdicts import ReportedSuspect

EACH_S = 60.0


class Accused:
    """Suspected GPUs; `statements` reads the evidence since a time, and `index_of` returns a GPU's index."""

    def __init__(
        self,
        statements: Callable[[float], Sequence[Statement]],
        index_of: Callable[[str, str], int | None],
        rule: SuspectThresholds | None = None,
    ) -> None:
        self._statements, self._index_of, self._rule = statements, index_of, rule or SuspectThresholds()
        self._due_s = -math.inf
        self.places: frozenset[Place] = frozenset()
        """GPUs that a verdict on any job suspects; healthy jobs on these GPUs are counter-evidence."""
        self.suspects: Sequence[ReportedSuspect] = ()

    def refresh(self, now_s: float) -> None:
        """Read the evidence unless it was read less than EACH_S ago."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EACH_S
        found = self._statements(now_s - self._rule.within_s)
        self.places = frozenset(place for item in found if item.accuses for place in item.devices)
        self.suspects = [self._reported(item) for item in suspects(found, now_s, self._rule)]

    def _reported(self, item: Suspect) -> ReportedSuspect:
        index = None if item.device is None else self._index_of(item.node, item.device)
        return ReportedSuspect(
            node=item.node,
            device=item.device,
            jobs=item.jobs,
            users=item.users,
            healthy=item.healthy,
            first_s=item.first_s,
            last_s=item.last_s,
            next_step=drain(item.node, index, item.jobs, item.users),
        )
