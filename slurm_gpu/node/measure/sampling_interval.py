"""Schedule samples of a device, more frequently while a segment is young or has just ended.

Expensive values are read only in every tenth sample; these samples are called detailed.
"""

from __future__ import annotations

# A young segment is sampled often, since a full interval would be a third of a 3-second job. A memory change
# is assumed to occur midway between two samples, so the error is at most half of this share of the segment's
# age.
YOUNG_SHARE = 0.005
YOUNGEST_S = 0.01
# A sample that will be due within this share of its interval is taken together with one that is due now.
EARLY_SHARE = 0.25
# Every tenth sample is detailed, and at least one every 10 s. Detailed samples are rare because their calls
# cost more; the driver's ring covers 20 s, and counters cover any time.
DETAIL_SHARE = 10
DETAIL_MAX_S = 10.0
# A pause counts as unmeasured if it exceeds GAP_S and this many intervals of samples or detailed samples.
GAP_SAMPLES, GAP_DETAILS = 5, 2
GAP_S = 0.5
# The delay before a failed sample is retried, since the reader restarts.
AGAIN_S = 0.1


class SamplingPace:
    """Schedules the samples of one device; `interval_s` is the sampling interval of older segments.

    `settling` is true while an ended segment waits for the driver's last samples; `asked_s` is the time of
    the last request.
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
        """Return the longest time between two samples that does not count as a gap."""
        return max(GAP_S, GAP_SAMPLES * self._expected_s)

    @property
    def detail_gap_s(self) -> float:
        """Return the longest time between two detailed samples that does not count as a gap."""
        return max(self.gap_s, GAP_DETAILS * min(self._detail_max_s, DETAIL_SHARE * self._expected_s))

    def set_youngest(self, start_s: float | None) -> None:
        """Set the time when the youngest segment on the device began, or None if there is no segment."""
        self._youngest_s = start_s
        # If only older segments are left, the pace slows down until another one starts.
        if self.asked_s is not None:
            self._paced_s = max(self._paced_s, self._pace_s(self.asked_s))

    def request_detail(self) -> None:
        """Make a detailed sample due now."""
        self._detailed_s = None

    def next_sample_s(self, now_s: float) -> float:
        """Return when the next sample is due; samples at the full interval coincide on all devices."""
        if self.asked_s is None:
            return now_s
        # Use the age at the last sample: with the current age, the due time would keep moving.
        step = self._step_s(self.asked_s)
        if self._skipped:
            return self.asked_s + max(AGAIN_S, step)
        if self._detailed_s is None:
            return now_s
        if step < self._interval_s:
            return self.asked_s + step
        return (self.asked_s // step + 1) * step

    def is_due(self, now_s: float) -> bool:
        """Return whether a sample is due, or will be due soon enough to be taken together with others."""
        next_s = self.next_sample_s(now_s)
        if next_s <= now_s or self.asked_s is None:
            return True
        step = self._step_s(self.asked_s)
        return step < self._interval_s and next_s - now_s <= EARLY_SHARE * step

    def is_steady(self) -> bool:
        """Return whether samples are taken at the full interval and no sample is due immediately."""
        if self.asked_s is None or self._detailed_s is None or self._skipped or self.settling:
            return False
        return self._pace_s(self.asked_s) >= self._interval_s

    def wants_details(self, now_s: float) -> bool:
        """Return whether a sample taken now should be detailed."""
        detail_s = min(self._detail_max_s, DETAIL_SHARE * self._step_s(now_s))
        return self._detailed_s is None or now_s - self._detailed_s >= 0.99 * detail_s

    def ask(self, now_s: float) -> None:
        """Record that a request was made at `now_s`."""
        # The start or end of a job affects only later samples; this sample was due at the previous pace.
        pace_s = self._pace_s(now_s)
        self._expected_s, self._paced_s = max(self._paced_s, pace_s), pace_s
        self.asked_s, self._skipped = now_s, False

    def detailed(self) -> None:
        """Record that the last sample was detailed."""
        self._detailed_s = self.asked_s

    def skip(self) -> None:
        """Record that the device could not be read this time."""
        self._skipped = True

    def _step_s(self, now_s: float) -> float:
        if self.settling:
            return min(self._interval_s, YOUNGEST_S)
        return self._pace_s(now_s)

    def _pace_s(self, now_s: float) -> float:
        """Return the sampling interval while no segment is settling."""
        age_s = 0.0 if self._youngest_s is None else now_s - self._youngest_s
        return min(self._interval_s, max(YOUNGEST_S, YOUNG_SHARE * age_s))
