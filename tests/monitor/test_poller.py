"""Test the polled state while slurm-gpudbd, or a part of its data, is unavailable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lab.synthetic import SyntheticCluster
from slurm_gpu.errors import DatabaseError
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.poller import NODES_AGAIN_S, NODES_EVERY_S, VIEWED_FOR_S, Poller
from slurm_gpu.wire.answers.reservation import Reservation
from tests.database.samples import FakeClock


class Flaky(SyntheticCluster):
    """A slurm-gpudbd with some failing answers, which counts requests."""

    def __init__(self) -> None:
        super().__init__(64, churn=0.1)
        self.unavailable: set[str] = set()
        self.asked: list[str] = []
        self.refreshed: list[str] = []

    def _answer(self, name: str, of: Callable[[], Any]) -> Any:
        self.asked.append(name)
        if name in self.unavailable:
            raise DatabaseError("slurm-gpudbd cannot be reached")
        return of()

    def cluster(self) -> Any:
        return self._answer("cluster", super().cluster)

    def live(self, refresh: str = "all") -> Mapping[str, Any]:
        self.refreshed.append(refresh)
        found: Mapping[str, Any] = self._answer("live", super().live)
        return found

    def nodes(self) -> Sequence[Any]:
        found: Sequence[Any] = self._answer("nodes", super().nodes)
        return found

    def running(self) -> Any:
        return self._answer("running", super().running)

    def verdicts(self) -> Any:
        return self._answer("verdicts", super().verdicts)

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> Sequence[Reservation]:
        return ()

    def close(self) -> None:
        pass


class Watched:
    """A poller of a slurm-gpudbd that fails at times."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source = Flaky()
        self.board = Board()
        self.n_connected = 0
        self.poller = Poller(self._connect, self.board, "lab", self.source.racks, self.clock)

    def _connect(self) -> Flaky:
        self.n_connected += 1
        return self.source

    def poll(self, after_s: float = 3.0) -> None:
        self.clock.now += after_s
        self.source.now_s = self.clock.now
        self.poller.poll()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_while_slurm_gpudbd_is_down_the_last_state_stays_and_grows_old(watched: Watched):
    watched.poll()
    before = watched.board.state
    assert before is not None
    watched.source.unavailable = {"cluster", "live", "nodes", "running"}
    watched.poll()
    assert watched.board.state is before
    assert watched.clock.now - before.as_of_s() == 3.0
    assert watched.poller.error == "slurm-gpudbd cannot be reached"


def test_it_is_shown_again_once_it_answers_by_a_new_connection(watched: Watched):
    watched.poll()
    watched.source.unavailable = {"live"}
    watched.poll()
    watched.source.unavailable = set()
    watched.poll()
    state = watched.board.state
    assert state is not None
    assert (state.as_of_s(), watched.n_connected, watched.poller.error) == (watched.clock.now, 2, None)


def test_an_older_slurm_gpudbd_without_running_jobs_still_has_a_page(watched: Watched):
    watched.source.unavailable = {"running"}
    watched.poll()
    state = watched.board.state
    assert state is not None
    assert set(state.frames["p25_util"]) == {255}
    assert set(state.frames["util"]) != {255}


def test_an_outage_of_slurm_only_is_visible_by_the_age_of_its_data(watched: Watched):
    watched.poll()
    said = watched.source.cluster()
    watched.source.cluster = lambda: said  # type: ignore[method-assign]
    watched.poll(60)
    state = watched.board.state
    assert state is not None
    assert watched.clock.now - state.as_of_s("state") == 60
    assert watched.clock.now - state.as_of_s("util") == 0
    assert watched.clock.now - state.as_of_s() == 60


def test_rarely_changing_data_is_requested_rarely(watched: Watched):
    for _ in range(10):
        watched.poll()
    assert (watched.source.asked.count("nodes"), watched.source.asked.count("live")) == (1, 10)
    watched.poll(NODES_EVERY_S)
    assert watched.source.asked.count("nodes") == 2


def test_versions_grow_also_across_a_restart(watched: Watched):
    watched.poll()
    watched.poll()
    first = watched.board.state
    watched.board.state = None
    watched.poll()
    second = watched.board.state
    assert first is not None
    assert second is not None
    assert second.version > first.version


def test_a_requeued_job_has_no_percentiles_of_its_earlier_run(watched: Watched):
    watched.poll()
    state = watched.board.state
    assert state is not None
    job, squares = next((job, squares) for job, squares in state.allocation.whole.items() if squares)
    assert state.frames["p95_util"][squares[0]] != 255
    original = watched.source.cluster()
    requeued = [
        replace(one, start_s=int(watched.clock.now)) if one.job_id == job else one for one in original.jobs
    ]
    watched.source.cluster = lambda: replace(original, jobs=requeued)  # type: ignore[method-assign]
    watched.poll()
    state = watched.board.state
    assert state is not None
    assert {state.frames["p95_util"][square] for square in squares} == {255}


def test_a_node_that_is_new_while_mariadb_is_down_takes_no_square_its_gpu(watched: Watched):
    original = watched.source.live()
    (_, *known) = original
    watched.source.live = lambda refresh: {name: original[name] for name in known}  # type: ignore[method-assign]
    watched.poll()
    before = watched.board.state
    assert before is not None
    watched.source.live = lambda refresh: original  # type: ignore[method-assign]
    watched.source.unavailable = {"nodes", "running"}
    for _ in range(3):
        watched.poll()
    state = watched.board.state
    assert state is not None
    assert (state.layout.id, state.as_of_s()) == (before.layout.id, watched.clock.now)
    assert set(state.frames["util"]) != {255}
    watched.source.unavailable = set()
    asked = watched.source.asked.count("nodes")
    watched.poll(NODES_AGAIN_S)
    assert watched.source.asked.count("nodes") == asked + 1


def test_started_while_mariadb_is_down_it_shows_allocations_and_the_rest_soon_afterwards(watched: Watched):
    watched.source.unavailable = {"nodes", "running"}
    watched.poll()
    first = watched.board.state
    assert first is not None
    assert (first.layout.n_squares, set(first.frames["util"])) == (64, {255})
    watched.source.unavailable = set()
    watched.poll(NODES_AGAIN_S)
    state = watched.board.state
    assert state is not None
    assert set(state.frames["util"]) != {255}


def test_nodes_post_each_ten_seconds_while_a_page_is_open(watched: Watched):
    watched.poll()
    watched.board.is_viewed = True
    watched.poll()
    watched.poll(VIEWED_FOR_S - 1)
    watched.poll(1)
    assert watched.source.refreshed == ["none", "all", "all", "none"]
