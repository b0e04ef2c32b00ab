"""Admit as many shipments as can be served before their nodes time out, and defer the others.

A node times out after 20 s and sends the same shipment again. If shipments were served after that time, the
work would be wasted, and the backlog would never shrink. A deferred shipment gets a time slot for its retry.
Slots are assigned at about the rate at which shipments are served, so even ten thousand nodes with data to
send are served one after another.
"""

from __future__ import annotations

import math

from slurm_gpu.clock import Clock
from slurm_gpu.database.http.error_responses import ShipmentError

# The number of waiting shipments is limited to the number that can be served within this time.
SERVED_WITHIN_S = 5.0
# Assumed rate before the first measurement. A time slot that is too early costs one more request; a slot that
# is too late leaves the server idle.
FIRST_PER_S = 1000.0
_LEAST_PER_S = 5.0
# If this many shipments wait throughout an interval, the measured rate is the maximum.
_BUSY = 20
_MEASURED_EACH_S = 1.0
# Slots assigned per served shipment. A node that retries too early retries again, at almost no cost.
_INVITED = 1.5
_SOONEST_S = 1.0
_LATEST_S = 300.0


class Admission:
    """Admission control for shipments of one kind; use it only in the event loop."""

    def __init__(self, clock: Clock, most: int) -> None:
        """Allow `most` waiting shipments; the remaining connections are left for other requests."""
        self._clock, self._most = clock, most
        self._n_waiting = 0
        self._per_s = FIRST_PER_S
        self._since_s, self._n_served, self._was_busy = -math.inf, 0, False
        self._last_turn_s = -math.inf

    @property
    def per_s(self) -> float:
        """Return the estimated number of shipments that can be served per second."""
        return self._per_s

    def enter(self) -> None:
        """Admit one more shipment; call `leave` when it has been served.

        If too many shipments wait, raise ShipmentError (503) with the time after which to retry.
        """
        self._measure()
        if self._n_waiting >= min(self._per_s * SERVED_WITHIN_S, self._most):
            now_s = self._clock.monotonic()
            turn_s = max(self._last_turn_s, now_s + _SOONEST_S) + 1 / (_INVITED * self._per_s)
            self._last_turn_s = min(turn_s, now_s + _LATEST_S)
            why = f"{self._n_waiting} shipments are waiting, and {self._per_s:.0f} are stored per second"
            raise ShipmentError(503, why, math.ceil(self._last_turn_s - now_s))
        self._n_waiting += 1

    def leave(self) -> None:
        """Count an admitted shipment as served."""
        self._n_waiting -= 1
        self._n_served += 1
        self._was_busy &= self._n_waiting >= _BUSY
        self._measure()

    def _measure(self) -> None:
        """Update the estimated rate.

        An interval with few waiting shipments can only raise the estimate.
        """
        now_s = self._clock.monotonic()
        passed_s = now_s - self._since_s
        if passed_s < _MEASURED_EACH_S:
            return
        per_s = self._n_served / passed_s
        if per_s > self._per_s or self._was_busy:
            self._per_s = max(_LEAST_PER_S, (self._per_s + per_s) / 2)
        elif self._n_waiting < _BUSY and self._last_turn_s > now_s:
            # Few shipments wait although slots are pending: the estimate is too low.
            self._per_s = min(FIRST_PER_S, 2 * self._per_s)
        self._since_s, self._n_served, self._was_busy = now_s, 0, self._n_waiting >= _BUSY
