"""Predict the result of an order of starts on each GPU from assumptions about whole runs.

Sharing pays if more work per second is done with the joining job than without it. Orders can describe any
schedule in which jobs start when others end. Since jobs share only if sharing pays, no order takes longer
than running its jobs one after the other. Speeds are means over whole runs. Memory is checked from each job's
current progress to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.colocation.planner import Belief, Member
from slurm_gpu.colocation.planners.outlook import Outlook

# Speed of jobs that run together although the belief does not permit it.
_SLOWEST = 0.01


class Rollout(Outlook):
    """See Outlook."""

    def __init__(
        self,
        belief: Belief,
        waiting: Sequence[Member],
        running: Sequence[Sequence[Member]],
        elapsed_s: Sequence[Sequence[float]],
        least_gain: float,
    ) -> None:
        """Create a prediction in which sharing pays if it gains more than `least_gain`."""
        super().__init__(waiting, running, elapsed_s)
        self._belief, self._least_gain = belief, least_gain
        self._speeds: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._joins: dict[tuple[int, ...], bool] = {}
        self._pairs = belief.most_together <= 2 and all(len(gpu) <= 2 for gpu in running)
        if self._pairs:
            self._speed_with, self._with = self._tables(len(waiting))

    def end_s(self, gpu: int, order: Sequence[int]) -> float:
        """See Outlook."""
        return self._end_of_pairs(gpu, order) if self._pairs else self._end_of_groups(gpu, order)

    def starts(self, gpu: int, order: Sequence[int]) -> int:
        """See Outlook."""
        present = self.here[gpu]
        at = 0
        while at < len(order) and self._begins(present, order[at]):
            present += (order[at],)
            at += 1
        return at

    def _begins(self, running: tuple[int, ...], job: int) -> bool:
        return not running or (not self.apart[job] and self.joins(running, job))

    def joins(self, running: tuple[int, ...], job: int) -> bool:
        """Return whether the job may start with the running jobs and sharing pays."""
        return not running or self._join(tuple(self._kind[one] for one in (*running, job)))

    def _join(self, kinds: tuple[int, ...]) -> bool:
        """Return whether a job of the last kind may join jobs of the kinds before it, and sharing pays."""
        known = self._joins.get(kinds)
        if known is None:
            more = sum(self._speeds_of(kinds)) - sum(self._speeds_of(kinds[:-1]))
            known = self._joins[kinds] = more > self._least_gain and self._belief.may_share(
                [self._of_kind[kind] for kind in kinds]
            )
        return known

    def _tables(self, n_waiting: int) -> tuple[list[list[float]], list[list[bool]]]:
        """Return two tables [a][b] by kind: the speed of a with b, and whether one may join the other.

        The tables cover all pairs that can occur.
        """
        kind, n = self._kind, len(self._of_kind)
        speed_with = [[1.0] * n for _ in range(n)]
        joins = [[False] * n for _ in range(n)]
        for one in {(kind[a], kind[b]) for gpu in self.here for a in gpu for b in gpu if a < b}:
            speed_with[one[0]][one[1]], speed_with[one[1]][one[0]] = self._speeds_of(one)
        for a in range(len(set(kind[:n_waiting]))):  # kinds of waiting jobs are numbered first
            for b in range(a, n):
                speed_with[a][b], speed_with[b][a] = self._speeds_of((a, b))
                joins[a][b] = joins[b][a] = self._join((b, a))
        return speed_with, joins

    def _speeds_of(self, kinds: tuple[int, ...]) -> tuple[float, ...]:
        known = self._speeds.get(kinds)
        if known is None:
            predicted = self._belief.speeds(tuple(self._of_kind[kind].application for kind in kinds))
            known = self._speeds[kinds] = tuple(max(one, _SLOWEST) for one in predicted)
        return known

    def _end_of_pairs(self, gpu: int, order: Sequence[int]) -> float:
        """Return the result of `_end_of_groups` for at most two jobs at once.

        This case has its own function, since a search spends most of its time here.
        """
        left_s, took_s, speed_with, joins = self.left_s, self.took_s, self._speed_with, self._with
        apart, kind = self.apart, self._kind
        here = self.here[gpu]
        a, b = (*here, -1, -1)[:2]
        a_left = left_s[a] if a >= 0 else 0.0
        b_left = left_s[b] if b >= 0 else 0.0
        a_began = self._began_s[a] if a >= 0 else 0.0
        b_began = self._began_s[b] if b >= 0 else 0.0
        now_s, at, n = 0.0, 0, len(order)
        while True:
            if a < 0:
                if at == n:
                    return now_s
                a = order[at]
                a_left, a_began = left_s[a], now_s
                at += 1
            if b < 0:
                if at < n and joins[kind[a]][kind[order[at]]] and not apart[order[at]]:
                    b = order[at]
                    b_left, b_began = left_s[b], now_s
                    at += 1
                else:
                    now_s += a_left
                    took_s[a] = now_s - a_began
                    a = -1
                    continue
            a_speed, b_speed = speed_with[kind[a]][kind[b]], speed_with[kind[b]][kind[a]]
            a_s, b_s = a_left / a_speed, b_left / b_speed
            if a_s < b_s:
                now_s += a_s
                took_s[a] = now_s - a_began
                a, a_left, a_began = b, b_left - a_s * b_speed, b_began
            else:
                now_s += b_s
                took_s[b] = now_s - b_began
                a_left -= b_s * a_speed
            b = -1

    def _end_of_groups(self, gpu: int, order: Sequence[int]) -> float:
        known_speeds, known_joins, apart, took_s = self._speeds, self._joins, self.apart, self.took_s
        kind = self._kind
        present = self.here[gpu]
        kinds = tuple(kind[one] for one in present)
        left_s = [self.left_s[one] for one in present]
        began_s = [self._began_s[one] for one in present]
        now_s, at, n = 0.0, 0, len(order)
        while present or at < n:
            while at < n:
                job = order[at]
                with_it = (*kinds, kind[job])
                if present:
                    if apart[job]:
                        break
                    joins = known_joins.get(with_it)
                    if not (self._join(with_it) if joins is None else joins):
                        break
                present += (job,)
                kinds = with_it
                left_s.append(self.left_s[job])
                began_s.append(now_s)
                at += 1
            speeds = known_speeds.get(kinds) or self._speeds_of(kinds)
            first, step_s = 0, left_s[0] / speeds[0]
            for index in range(1, len(present)):
                end_s = left_s[index] / speeds[index]
                if end_s < step_s:
                    first, step_s = index, end_s
            now_s += step_s
            took_s[present[first]] = now_s - began_s[first]
            present = present[:first] + present[first + 1 :]
            kinds = kinds[:first] + kinds[first + 1 :]
            left_s = [
                left - step_s * speed
                for index, (left, speed) in enumerate(zip(left_s, speeds, strict=True))
                if index != first
            ]
            del began_s[first]
        return now_s
