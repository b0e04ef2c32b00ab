"""What has been seen of one device while one job held it for itself: all in a window's memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from slurm_gpu.attention.concern import BAD_THROTTLES, Rules
from slurm_gpu.records import LiveDevice


class _Seen(NamedTuple):
    """One value, and the seconds before it of which it tells."""

    at_s: float
    for_s: float
    memory_full: bool
    throttled: bool | None


class Course:
    """One device of one job."""

    def __init__(self, since_s: float, used: bool) -> None:
        self.used = used
        """Whether it ever computed anything for this job."""
        self.idle_since_s = since_s
        """The end of its last use; where there was none, when it was first watched."""
        self._idle_known_s = 0.0
        self._at_s = since_s
        self._recent: deque[_Seen] = deque()

    def see(self, at_s: float, value: LiveDevice, rules: Rules) -> None:
        """A value arrived; one that is no newer than the last tells nothing."""
        if at_s <= self._at_s or value.util_pct is None:
            return
        for_s = min(at_s - self._at_s, rules.value_for_s)
        self._at_s = at_s
        if value.util_pct > rules.idle_pct:
            self.used, self.idle_since_s, self._idle_known_s = True, at_s, 0.0
        else:
            self._idle_known_s += for_s
        throttled = None if value.throttle is None else not BAD_THROTTLES.isdisjoint(value.throttle)
        full = value.mem_used_frac is not None and value.mem_used_frac >= rules.memory_frac
        self._recent.append(_Seen(at_s, for_s, full, throttled))
        while self._recent[0].at_s <= at_s - rules.window_s:
            self._recent.popleft()

    def idle_coverage(self, now_s: float, rules: Rules) -> float | None:
        """How much was seen of the time since its last use; None while that is too short, or too little."""
        idle_s = now_s - self.idle_since_s
        if idle_s < rules.window_s:
            return None
        coverage = min(self._idle_known_s / idle_s, 1.0)
        return coverage if coverage >= rules.min_coverage else None

    def memory_is_full(self, now_s: float, rules: Rules) -> bool:
        """Whether it was, each time that anybody looked within the window."""
        recent = [seen for seen in self._recent if seen.at_s > now_s - rules.window_s]
        return bool(recent) and all(seen.memory_full for seen in recent)

    def throttled(self, now_s: float, rules: Rules) -> tuple[float, float] | None:
        """(since when, coverage), where it was for too much of the window; None where not, or not seen."""
        recent = [seen for seen in self._recent if seen.at_s > now_s - rules.window_s]
        told = [seen for seen in recent if seen.throttled is not None]
        known_s = sum(seen.for_s for seen in told)
        coverage = min(known_s / rules.window_s, 1.0)
        if coverage < rules.min_coverage:
            return None
        bad = [seen for seen in told if seen.throttled]
        if sum(seen.for_s for seen in bad) < rules.throttled_share * known_s:
            return None
        return bad[0].at_s - bad[0].for_s, coverage
