"""Replace implausible values with None, count them by field, and report each field at most once an hour."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.plausible import is_plausible
from slurm_gpu.wire import Host

log = logging.getLogger(__name__)

AGAIN_S = 3600.0
_HOST_FIELDS = (
    *("cpu_s", "rss_max_mib", "read_bytes", "write_bytes"),
    *("net_rx_bytes", "net_tx_bytes", "ib_rx_bytes", "ib_tx_bytes"),
)


class ImplausibleValues:
    """Counts implausible values by field; `report` records an event for a device, or for the node (None)."""

    def __init__(self, clock: Clock, report: Callable[[str | None, Mapping[str, Any]], None]) -> None:
        self._clock, self._report = clock, report
        self._reported_s: dict[tuple[str | None, str], float] = {}
        self.counts: Counter[str] = Counter()

    def note(self, device: str | None, found: Mapping[str, str] | None) -> None:
        """Count implausible values of a device, or of the node if `device` is None."""
        for field, value in (found or {}).items():
            self.counts[field] += 1
            now_s = self._clock.monotonic()
            reported_s = self._reported_s.get((device, field))
            if reported_s is None or now_s - reported_s >= AGAIN_S:
                self._reported_s[device, field] = now_s
                log.warning(
                    "%s: %s was %s, which is impossible; such values are gaps",
                    "the host" if device is None else f"GPU {device}",
                    field,
                    value,
                )
                self._report(device, {"field": field, "value": value})

    def host(self, host: Host) -> Host:
        """Return the host record with implausible fields replaced by None."""
        wrong = _implausible({name: getattr(host, name) for name in _HOST_FIELDS})
        self.note(None, wrong)
        gaps: dict[str, Any] = dict.fromkeys(wrong)
        return replace(host, **gaps) if gaps else host

    def of_node(self, values: Mapping[str, float | None]) -> dict[str, float]:
        """Return the node's live values by name, leaving out unknown and implausible values."""
        wrong = _implausible(values)
        self.note(None, wrong)
        return {name: value for name, value in values.items() if value is not None and name not in wrong}


def _implausible(values: Mapping[str, float | None]) -> dict[str, str]:
    return {
        name: f"{value:.12g}"
        for name, value in values.items()
        if value is not None and not is_plausible(name, value)
    }
