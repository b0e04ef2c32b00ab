"""A log, played once more: who started when, decided by nobody."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.colocation.planner import Start, View
from slurm_gpu.colocation.simulation.outcome import Event, What


class Replay:
    """The planner that starts what a log says; with the same jobs in the same world all else follows."""

    name = "replay"

    def __init__(self, log: Sequence[Event]) -> None:
        self._log, self._at = log, 0

    def choose(self, view: View) -> list[Start]:
        """The starts of this moment, up to what followed from them."""
        while self._at < len(self._log) and self._log[self._at].what is not What.START:
            self._at += 1
        starts: list[Start] = []
        for event in self._log[self._at :]:
            if event.what is not What.START or event.at_s > view.now_s:
                break
            starts.append(Start(event.gpu, (event.job,)))
        self._at += len(starts)
        return starts

    @property
    def wake_s(self) -> float:
        """See planner.Waker: the next start."""
        return next((one.at_s for one in self._log[self._at :] if one.what is What.START), math.inf)
