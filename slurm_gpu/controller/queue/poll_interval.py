"""Choose the time of the next poll of slurmctld: every second while polls are cheap, otherwise less often."""

from __future__ import annotations

from slurm_gpu.controller.queue.demand import Demand

INTERVAL_S = 1.0
# Interval of polls after an admission. A cancelled admission counts until a poll that starts at least 0.7 s
# later (MARGIN_S of ledger.lua); the documentation promises at most 2 s. An interval of a second would leave
# too little time for slurmctld and squeue.
_INTERVAL_WHILE_DECIDED_S = 0.5
# Maximum share of the time in which a query runs; squeue itself takes most of the time of a query.
_SHARE = 0.3
# Maximum share of a core that slurm-gpuctld and squeue use for polls without demand.
_CPU_SHARE = 0.02
_CPU_SHARE_WHILE_REFUSED = 0.3
# Maximum interval while slurmctld answers: a snapshot is valid for 30 s.
_LONGEST_S = 15.0
# Maximum interval between failed queries: a snapshot is needed as soon as slurmctld is back.
_LONGEST_DOWN_S = 20.0


class PollPace:
    """Computes the adaptive poll interval of one watcher."""

    def __init__(self) -> None:
        self._failures = 0
        self._cost = (0.0, 0.0, 0.0)

    def after_answer(self, asked_s: float, took_s: float, cpu_s: float, demand: Demand) -> float:
        """Return the delay after a successful poll.

        The poll took `took_s`, including `asked_s` for slurmctld's answer, and used `cpu_s` of CPU time. The
        delay limits the load on slurmctld and the CPU; the limit for the CPU is higher while jobs are being
        refused.
        """
        self._failures = 0
        self._cost = asked_s, took_s, cpu_s
        return self.while_asked_for(demand)

    def while_asked_for(self, demand: Demand) -> float:
        """Return the delay, given the demand since the last poll."""
        asked_s, took_s, cpu_s = self._cost
        interval_s = INTERVAL_S if demand is Demand.NONE else _INTERVAL_WHILE_DECIDED_S
        share = _CPU_SHARE_WHILE_REFUSED if demand is Demand.REFUSED else _CPU_SHARE
        return max(
            interval_s - took_s, min(asked_s * (1 / _SHARE - 1), _LONGEST_S), min(cpu_s / share, _LONGEST_S)
        )

    def after_failure(self, took_s: float) -> float:
        """Return the delay after a failed query, which doubles with each failure.

        The duration of the query is subtracted, because Slurm's commands may retry for many seconds before
        they fail.
        """
        self._failures += 1
        return max(INTERVAL_S, min(INTERVAL_S * 2.0**self._failures, _LONGEST_DOWN_S) - took_s)
