"""When slurmctld is asked next: each second while looks are cheap, ever less often while they are not."""

from __future__ import annotations

from slurm_gpu.controller.queue.demand import Demand

INTERVAL_S = 1.0
_INTERVAL_WHILE_DECIDED_S = 0.5
"""A cancelled admission counts until a poll that began at least 0.7 s later (MARGIN_S of ledger.lua). The
promise is 2 s, of which a whole second between polls would leave too little for slurmctld and squeue."""
_SHARE = 0.3
"""At most this part of the time a question may be under way; most of it is squeue's own."""
_CPU_SHARE = 0.02
"""At most this part of a core goes into looks, ours and squeue's, while nobody waits for one."""
_CPU_SHARE_WHILE_REFUSED = 0.3
_LONGEST_S = 15.0
"""Between two looks while slurmctld answers: a snapshot is good for 30 s."""
_LONGEST_AWAY_S = 20.0
"""Between two questions that are not answered: a snapshot is missed as soon as slurmctld is back."""


class PollPace:
    """The growing delay of one watcher."""

    def __init__(self) -> None:
        self._failures = 0
        self._cost = (0.0, 0.0, 0.0)

    def after_answer(self, asked_s: float, took_s: float, cpu_s: float, demand: Demand) -> float:
        """Seconds to wait after a look of `took_s` and `cpu_s` of a core, for which slurmctld took `asked_s`.

        Both are spared, slurmctld and the core; but whoever was refused is not kept waiting for the latter.
        """
        self._failures = 0
        self._cost = asked_s, took_s, cpu_s
        return self.while_asked_for(demand)

    def while_asked_for(self, demand: Demand) -> float:
        """The same, with what is asked for meanwhile."""
        asked_s, took_s, cpu_s = self._cost
        interval_s = INTERVAL_S if demand is Demand.NONE else _INTERVAL_WHILE_DECIDED_S
        share = _CPU_SHARE_WHILE_REFUSED if demand is Demand.REFUSED else _CPU_SHARE
        return max(
            interval_s - took_s, min(asked_s * (1 / _SHARE - 1), _LONGEST_S), min(cpu_s / share, _LONGEST_S)
        )

    def after_failure(self, took_s: float) -> float:
        """Seconds to wait when there was no answer: twice as long each time.

        Slurm's commands may themselves try for many seconds before they give up.
        """
        self._failures += 1
        return max(INTERVAL_S, min(INTERVAL_S * 2.0**self._failures, _LONGEST_AWAY_S) - took_s)
