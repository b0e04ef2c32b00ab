"""When to look at a device: often while a segment is young or has just ended, then at the sampling interval.

What costs more comes with one look in so many only.
"""

from __future__ import annotations

# A young segment is looked at often: of a job of 3 s, one sampling interval is a third. Memory that comes or
# goes between two looks is placed in their middle, so it is wrong by half a share of the time at most.
YOUNG_SHARE = 0.005
YOUNGEST_S = 0.01
# A look that is due so soon is made together with one that is due now.
EARLY_SHARE = 0.25
# Everything else, whose calls cost more, comes with one look in so many: the driver's ring of samples reaches
# back for 20 s, and counters for ever. It comes each 10 s at least, or with each look.
DETAIL_SHARE = 10
DETAIL_MAX_S = 10.0
# A pause of so many looks, or looks at details, and at least this long, is a gap.
GAP_SAMPLES, GAP_DETAILS = 5, 2
GAP_S = 0.5
# Where the device could not be asked (its reader restarts), when to try again.
AGAIN_S = 0.1


class SamplingPace:
    """Of one device; `interval_s` is the sampling interval of grown-up segments.

    `settling` says that a segment has ended and waits for the driver's last word. `asked_s` is when it was
    asked last.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._detail_max_s = interval_s, max(interval_s, DETAIL_MAX_S)
        self._youngest_s: float | None = None
        self.settling = False
        self.asked_s: float | None = None
        self._detailed_s: float | None = None
        self._paced_s = self._expected_s = 0.0
        self._skipped = False

    @property
    def gap_s(self) -> float:
        """How far two looks may lie apart, by the pace that was kept up to the last one."""
        return max(GAP_S, GAP_SAMPLES * self._expected_s)

    @property
    def detail_gap_s(self) -> float:
        """The same for looks at details."""
        return max(self.gap_s, GAP_DETAILS * min(self._detail_max_s, DETAIL_SHARE * self._expected_s))

    def set_youngest(self, start_s: float | None) -> None:
        """Set when the youngest segment on the device began (Clock.monotonic()), None if there is none."""
        self._youngest_s = start_s
        # With only older segments left the pace is slower, for as long as no other one begins.
        if self.asked_s is not None:
            self._paced_s = max(self._paced_s, self._pace_s(self.asked_s))

    def request_detail(self) -> None:
        """Make the next look due now, and a detailed one."""
        self._detailed_s = None

    def next_sample_s(self, now_s: float) -> float:
        """When to look again; looks at full intervals fall together on all devices."""
        if self.asked_s is None:
            return now_s
        # By the age at the last look: by that of now, the next look would retreat as it comes near.
        step = self._step_s(self.asked_s)
        if self._skipped:
            return self.asked_s + max(AGAIN_S, step)
        if self._detailed_s is None:
            return now_s
        if step < self._interval_s:
            return self.asked_s + step
        return (self.asked_s // step + 1) * step

    def is_due(self, now_s: float) -> bool:
        """Look now? A little early too, so that several devices are looked at together."""
        next_s = self.next_sample_s(now_s)
        if next_s <= now_s or self.asked_s is None:
            return True
        step = self._step_s(self.asked_s)
        return step < self._interval_s and next_s - now_s <= EARLY_SHARE * step

    def is_steady(self) -> bool:
        """Do looks come at full intervals, and is none due at once?"""
        if self.asked_s is None or self._detailed_s is None or self._skipped or self.settling:
            return False
        return self._pace_s(self.asked_s) >= self._interval_s

    def wants_details(self, now_s: float) -> bool:
        """Is a look of now to be a detailed one?"""
        detail_s = min(self._detail_max_s, DETAIL_SHARE * self._step_s(now_s))
        return self._detailed_s is None or now_s - self._detailed_s >= 0.99 * detail_s

    def ask(self, now_s: float) -> None:
        """It is asked now."""
        # A job that begins or ends makes the looks from now on come faster, not those until now.
        pace_s = self._pace_s(now_s)
        self._expected_s, self._paced_s = max(self._paced_s, pace_s), pace_s
        self.asked_s, self._skipped = now_s, False

    def detailed(self) -> None:
        """What it was asked last was answered, in detail."""
        self._detailed_s = self.asked_s

    def skip(self) -> None:
        """It could not be asked this time."""
        self._skipped = True

    def _step_s(self, now_s: float) -> float:
        if self.settling:
            return min(self._interval_s, YOUNGEST_S)
        return self._pace_s(now_s)

    def _pace_s(self, now_s: float) -> float:
        """Time between looks while nobody's end is waited for."""
        age_s = 0.0 if self._youngest_s is None else now_s - self._youngest_s
        return min(self._interval_s, max(YOUNGEST_S, YOUNG_SHARE * age_s))
