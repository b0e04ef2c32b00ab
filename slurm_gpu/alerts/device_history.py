"""Keep the values of the last window of a device that only one job uses."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu.alerts.alert import BAD_THROTTLES, CLOCKS_S, AlertThresholds
from slurm_gpu.wire import LiveDevice

# Maximum age of a reading in a live value; used if `idle_s`, which is more exact, is unknown.
_READ_S = 15.0


class _HistoryValue(NamedTuple):
    """A value that covers the `for_s` seconds before its sample, which was taken at `at_s`."""

    at_s: float
    for_s: float
    memory_full: bool
    throttled: bool | None


class IdlePeriod(NamedTuple):
    """A period, at least one window long, in which a device was not used, and its observed share."""

    since_s: float
    coverage: float


@dataclass(slots=True)
class _Stretch:
    """The start of a period in which the device was not used, and its observed seconds."""

    since_s: float
    known_s: float = 0.0

    def idle(self, now_s: float, rules: AlertThresholds) -> IdlePeriod | None:
        """Return the idle period; None if it is too short or too little of it was observed."""
        long_s = now_s - self.since_s
        if long_s < rules.window_s:
            return None
        coverage = min(self.known_s / long_s, 1.0)
        return IdlePeriod(self.since_s, coverage) if coverage >= rules.min_coverage else None


class DeviceHistory:
    """The history of one device of one job."""

    def __init__(self, since_s: float, used: bool | None) -> None:
        self.used = used
        """Whether the job has ever used the device; None if this is only known from the job's records."""
        self._began_s = self._at_s = since_s
        self._unused = _Stretch(since_s)
        """The period since the device was last used or, if it was never used, since the watch began."""
        self._watched = _Stretch(since_s)
        """The part of the unused period since observation was last interrupted for too long."""
        self._recent: deque[_HistoryValue] = deque()
        self._n_throttled = 0
        """Number of throttled values; in the usual case of 0, no sum is computed."""

    def add(self, at_s: float, value: LiveDevice, rules: AlertThresholds) -> None:
        """Add a value; ignore a value that is not newer than the last value."""
        if at_s <= self._at_s or value.util_pct is None:
            return
        before_s = self._at_s
        for_s = min(at_s - before_s, rules.value_for_s)
        self._at_s = at_s
        if at_s - for_s - before_s > (1 - rules.min_coverage) * rules.window_s:
            self._watched = _Stretch(at_s - for_s)
        computed_s = self._computed_s(at_s, before_s, value, rules)
        for stretch in (self._unused, self._watched):
            stretch.known_s += for_s
            if computed_s is not None and computed_s > stretch.since_s:
                stretch.since_s = computed_s
                stretch.known_s = min(for_s, at_s - computed_s) + max(0.0, before_s - computed_s)
        # Use right after the start may belong to the previous job.
        if computed_s is not None and computed_s > self._began_s + CLOCKS_S:
            self.used = True
        throttled = None if value.throttle is None else not BAD_THROTTLES.isdisjoint(value.throttle)
        full = value.mem_used_frac is not None and value.mem_used_frac >= rules.memory_frac
        self._recent.append(_HistoryValue(at_s, for_s, full, throttled))
        self._n_throttled += bool(throttled)
        while self._recent[0].at_s <= at_s - rules.window_s:
            self._n_throttled -= bool(self._recent.popleft().throttled)

    def _computed_s(
        self, at_s: float, before_s: float, value: LiveDevice, rules: AlertThresholds
    ) -> float | None:
        """Return the time of the last use since the previous value; None if the device was not used.

        Use shortly before the previous value is included, because nodes may detect use late.
        """
        if value.idle_s is not None:
            return at_s - value.idle_s if value.idle_s <= at_s - before_s + rules.value_for_s else None
        assert value.util_pct is not None
        return at_s - _READ_S if value.util_pct > rules.idle_pct else None

    def idle(self, now_s: float, rules: AlertThresholds, *, unused: bool) -> IdlePeriod | None:
        """Return the current idle period; None if it is too short or too little of it was observed.

        A device that was used must have been observed since the last interruption that was too long. A device
        that was never used (`unused`) must have been observed for the whole time.
        """
        whole = self._unused.idle(now_s, rules)
        return whole if whole is not None or unused else self._watched.idle(now_s, rules)

    def memory_is_full(self, now_s: float, rules: AlertThresholds) -> bool:
        """Return whether every value in the window shows full memory."""
        since_s = now_s - rules.window_s
        latest = itertools.takewhile(lambda seen: seen.at_s > since_s, reversed(self._recent))
        return next((seen.memory_full for seen in latest), False) and all(seen.memory_full for seen in latest)

    def throttled(self, now_s: float, rules: AlertThresholds) -> tuple[float, float] | None:
        """Return (start, coverage) if the device was throttled for too much of the window, otherwise None."""
        if not self._n_throttled:
            return None
        recent = [seen for seen in self._recent if seen.at_s > now_s - rules.window_s]
        known = [seen for seen in recent if seen.throttled is not None]
        known_s = sum(seen.for_s for seen in known)
        coverage = min(known_s / rules.window_s, 1.0)
        if coverage < rules.min_coverage:
            return None
        bad = [seen for seen in known if seen.throttled]
        if sum(seen.for_s for seen in bad) < rules.throttled_share * known_s:
            return None
        return bad[0].at_s - bad[0].for_s, coverage
