"""Which GPUs stand accused, and by how many: read from the table once in a while."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slurm_gpu.alerts.suspects import Place, Statement, Suspect, SuspectThresholds, drain, suspects
from slurm_gpu.wire.answers.verdicts import ReportedSuspect

EACH_S = 60.0


class Accused:
    """`statements` reads those since a moment; `index_of` tells a GPU's number in its node, where known."""

    def __init__(
        self,
        statements: Callable[[float], Sequence[Statement]],
        index_of: Callable[[str, str], int | None],
        rule: SuspectThresholds | None = None,
    ) -> None:
        self._statements, self._index_of, self._rule = statements, index_of, rule or SuspectThresholds()
        self._due_s = -math.inf
        self.places: frozenset[Place] = frozenset()
        """Culprits of any job: those for whom it counts that others are well there."""
        self.suspects: Sequence[ReportedSuspect] = ()

    def look(self, now_s: float) -> None:
        """Read them again, if it is time."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EACH_S
        said = self._statements(now_s - self._rule.within_s)
        self.places = frozenset(place for item in said if item.accuses for place in item.devices)
        self.suspects = [self._told(item) for item in suspects(said, now_s, self._rule)]

    def _told(self, item: Suspect) -> ReportedSuspect:
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
