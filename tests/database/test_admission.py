"""No admitted shipment times out, and each rejected one gets a time slot."""

from collections import deque
from heapq import heappop, heappush

import pytest

from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.admission import FIRST_PER_S, SERVED_WITHIN_S, Admission
from tests.database.samples import FakeClock

STEP_S = 0.01
MOST = 500


class Site:
    """Nodes that retry after the requested delay, and a server that works in order of arrival."""

    def __init__(self, n_nodes: int, per_s: float) -> None:
        self.clock, self.per_s = FakeClock(), per_s
        self.slow_until_s = self.clock.monotonic()
        self.admission = Admission(self.clock, MOST)
        self.due = [(self.clock.monotonic() + n / n_nodes, n) for n in range(n_nodes)]
        self.waiting: deque[tuple[float, int]] = deque()
        self.waited_s: list[float] = []
        self._served = 0.0

    def run(self) -> float:
        """Run until all nodes are served; return the seconds that it took."""
        began_s = self.clock.monotonic()
        while self.due or self.waiting:
            self.clock.now += STEP_S
            now_s = self.clock.monotonic()
            while self.due and self.due[0][0] <= now_s:
                self.come(heappop(self.due)[1], now_s)
            per_s = self.per_s / 10 if now_s < self.slow_until_s else self.per_s
            self._served = min(self._served + per_s * STEP_S, len(self.waiting))
            while self._served >= 1:
                self._served -= 1
                self.waited_s.append(now_s - self.waiting.popleft()[0])
                self.admission.leave()
            assert now_s - began_s < 600
        return self.clock.monotonic() - began_s

    def come(self, node: int, now_s: float) -> None:
        reported_at_s = reported(self.admission)
        if reported_at_s is None:
            self.waiting.append((now_s, node))
        else:
            heappush(self.due, (now_s + reported_at_s + 1 + node % 7 / 7, node))


def reported(admission: Admission) -> int | None:
    """Return the delay of a rejected shipment; None if it is admitted."""
    try:
        admission.enter()
    except ShipmentError as error:
        return error.retry_after_s
    return None


@pytest.mark.parametrize("per_s", [40, 400, 1500])
def test_admitted_shipments_are_served_in_time_and_all_in_the_end(per_s: int) -> None:
    site = Site(1000, per_s)
    took_s = site.run()
    assert len(site.waited_s) == 1000
    assert max(site.waited_s) < max(1.2 * SERVED_WITHIN_S, 1.2 * MOST / per_s)
    assert took_s < 2 * 1000 / per_s + 10, "there is hardly ever nothing to do"


def test_time_slots_get_shorter_once_the_server_is_fast() -> None:
    site = Site(3000, 500)
    site.slow_until_s += 5
    assert site.run() < 5 + 2 * 3000 / 500 + 10


def test_time_slots_match_the_rate_of_served_shipments() -> None:
    admission = Admission(FakeClock(), MOST)
    turns = [turn for _ in range(10_000) if (turn := reported(admission)) is not None]
    assert len(turns) == 10_000 - MOST
    assert turns == sorted(turns)
    assert turns[-1] == pytest.approx(1 + len(turns) / (1.5 * FIRST_PER_S), abs=1)


def test_a_quiet_period_does_not_lower_the_rate() -> None:
    clock = FakeClock()
    admission = Admission(clock, MOST)
    for _ in range(100):
        admission.enter()
        clock.now += 0.5
        admission.leave()
    assert admission.per_s == FIRST_PER_S
