"""Measure the bytes that a segment moved over a link of its device (PCIe, NVLink) in each direction.

If a counter never grew, the result is 0 bytes unless other values contradict it. The counter is considered
unmeasured if bytes moved in the other direction, because a copy causes requests or acknowledgements in
return. A PCIe counter is also considered unmeasured if the device computed, because kernels are launched, and
report their end, over PCIe. A GPU without peers moves nothing over NVLink, so 0 is a valid result there.
"""

from __future__ import annotations

from slurm_gpu.node.gpu.reading import DeviceCounter
from slurm_gpu.node.measure.counters import CounterSum
from slurm_gpu.wire import Total

# Counters may briefly exceed a link's nominal bandwidth, or include traffic that the bandwidth excludes.
SLACK = 1.5


class LinkSum:
    """Collects the traffic of one link; `per_s` is its capacity in each direction, if known."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        most_per_s = None if per_s is None else SLACK * per_s
        self._rx, self._tx = CounterSum(most_per_s), CounterSum(most_per_s)

    def see(
        self, rx: DeviceCounter | None, tx: DeviceCounter | None, between_s: float, allocated_s: float
    ) -> tuple[float | None, float | None]:
        """Count readings of both directions as in CounterSum.see; return the known growth per second."""
        return self._moving(
            self._rx.see(rx, between_s, allocated_s), self._tx.see(tx, between_s, allocated_s)
        )

    def add(self, rx: float | None, tx: float | None, seconds: float) -> tuple[float | None, float | None]:
        """Add `seconds` of traffic at rates measured by other means; return the valid rates."""
        for total, rate in ((self._rx, rx), (self._tx, tx)):
            if rate is not None:
                total.add(rate, seconds)
        return self._moving(rx, tx)

    def _moving(self, rx: float | None, tx: float | None) -> tuple[float | None, float | None]:
        """Return the rates; if bytes have moved in only one direction, the other rate is None."""
        rx_moved, tx_moved = self._rx.has_grown, self._tx.has_grown
        return rx if rx_moved or not tx_moved else None, tx if tx_moved or not rx_moved else None

    def load(self, rx: float | None, tx: float | None) -> float | None:
        """Return the traffic in the directions whose rate is known, as a fraction of their capacity."""
        known = [rate for rate in (rx, tx) if rate is not None]
        if not known or self._per_s is None or self._per_s <= 0:
            return None
        return sum(known) / (len(known) * self._per_s)

    @property
    def has_moved(self) -> bool:
        """Return whether a byte was counted in either direction."""
        return self._rx.has_grown or self._tx.has_grown

    @property
    def is_frozen(self) -> bool:
        """Return whether the link was measured but no byte was counted in either direction."""
        return not self.has_moved and (self._rx.total() is not None or self._tx.total() is not None)

    def forget(self) -> None:
        """Treat the counters as reset."""
        self._rx.forget()
        self._tx.forget()

    def totals(self, *, has_to_move: bool = False) -> tuple[Total | None, Total | None]:
        """Return the bytes received and sent; each is None if it was not measured.

        If `has_to_move` is true, 0 bytes in both directions also means that the link was not measured.
        """
        rx_moved, tx_moved = self._rx.has_grown, self._tx.has_grown
        return (
            self._rx.total() if rx_moved or not (tx_moved or has_to_move) else None,
            self._tx.total() if tx_moved or not (rx_moved or has_to_move) else None,
        )
