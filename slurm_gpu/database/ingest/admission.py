"""Lets in as many shipments as are served while their nodes wait; the others are told when to come.

A node gives up after 20 s and sends the same again, so what is served later than that is served in vain, and
a backlog of it never ends. Who is not let in is given a turn: turns follow each other as fast as shipments
are served, so that ten thousand nodes that all have something to tell come one after the other.
"""

from __future__ import annotations

import math

from slurm_gpu.clock import Clock
from slurm_gpu.database.http.error_responses import ShipmentError

SERVED_WITHIN_S = 5.0
"""As many wait as are served in that time."""
FIRST_PER_S = 1000.0
"""What is served in a second, before it is known: who is told too early comes once more, who is told too late
leaves the server idle."""
_LEAST_PER_S = 5.0
_BUSY = 20
"""Where at least so many wait all the time, no more could be served than were."""
_MEASURED_EACH_S = 1.0
_INVITED = 1.5
"""So many are invited for each that is served: who comes too early comes again, and costs next to nothing."""
_SOONEST_S = 1.0
_LATEST_S = 300.0


class Admission:
    """For shipments of one kind; in the loop alone."""

    def __init__(self, clock: Clock, most: int) -> None:
        """`most` wait at once in any case: so many connections are not there for others."""
        self._clock, self._most = clock, most
        self._n_waiting = 0
        self._per_s = FIRST_PER_S
        self._since_s, self._n_served, self._was_busy = -math.inf, 0, False
        self._last_turn_s = -math.inf

    @property
    def per_s(self) -> float:
        """How many can be served in a second, as far as it is known."""
        return self._per_s

    def come(self) -> None:
        """One more, which is to `go`. Raises ShipmentError (503) where it has to come again."""
        self._measure()
        if self._n_waiting >= min(self._per_s * SERVED_WITHIN_S, self._most):
            now_s = self._clock.monotonic()
            turn_s = max(self._last_turn_s, now_s + _SOONEST_S) + 1 / (_INVITED * self._per_s)
            self._last_turn_s = min(turn_s, now_s + _LATEST_S)
            why = f"{self._n_waiting} shipments wait already, and {self._per_s:.0f} are taken in in a second"
            raise ShipmentError(503, why, math.ceil(self._last_turn_s - now_s))
        self._n_waiting += 1

    def go(self) -> None:
        """It was served."""
        self._n_waiting -= 1
        self._n_served += 1
        self._was_busy &= self._n_waiting >= _BUSY
        self._measure()

    def _measure(self) -> None:
        """See how many are served; where few waited more could have been."""
        now_s = self._clock.monotonic()
        passed_s = now_s - self._since_s
        if passed_s < _MEASURED_EACH_S:
            return
        per_s = self._n_served / passed_s
        if per_s > self._per_s or self._was_busy:
            self._per_s = max(_LEAST_PER_S, (self._per_s + per_s) / 2)
        elif self._n_waiting < _BUSY and self._last_turn_s > now_s:
            # Hardly anybody waits, and some have yet to come: there was more room than it seemed.
            self._per_s = min(FIRST_PER_S, 2 * self._per_s)
        self._since_s, self._n_served, self._was_busy = now_s, 0, self._n_waiting >= _BUSY
