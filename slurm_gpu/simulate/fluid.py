"""Work that is done at a speed which changes: what every model of shared GPUs integrates."""

from __future__ import annotations


class Work:
    """Some work of a running job, in seconds alone; at speed 1 it does 1 a second."""

    __slots__ = ("_left_s", "_since_s", "speed")

    def __init__(self, left_s: float, now_s: float) -> None:
        self._left_s, self.speed, self._since_s = left_s, 1.0, now_s

    def left_s(self, now_s: float) -> float:
        """What is left at this moment, no earlier than the last change."""
        return max(self._left_s - self.speed * (now_s - self._since_s), 0.0)

    def change(self, now_s: float, speed: float) -> float:
        """Goes on at another speed, above 0. Returns when it will be done."""
        self._left_s, self.speed, self._since_s = self.left_s(now_s), speed, now_s
        return now_s + self._left_s / speed
