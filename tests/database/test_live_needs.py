"""Readers determine which nodes post live values every ten seconds, and for how long."""

from typing import Any

import pytest

from slurm_gpu.database.live.live_needs import NEEDED_FOR_S, LiveNeeds, n_gpus
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S
from tests.database.intake_without_http import Gate
from tests.database.samples import FakeClock, MemorySlurm, queued


def test_a_need_covers_its_nodes_until_it_expires() -> None:
    clock = FakeClock()
    needs = LiveNeeds(clock)
    needs.ask(["n1"])
    assert (needs.interval_s("n1"), needs.interval_s("n2")) == (LIVE_INTERVAL_S, IDLE_LIVE_INTERVAL_S)
    assert needs.names() == {"n1"}
    clock.now += NEEDED_FOR_S
    assert needs.interval_s("n1") == IDLE_LIVE_INTERVAL_S
    assert needs.names() == frozenset()


def test_a_need_for_all_covers_nodes_that_are_not_known_yet() -> None:
    clock = FakeClock()
    needs = LiveNeeds(clock)
    needs.ask_all()
    assert (needs.interval_s("new"), needs.names()) == (LIVE_INTERVAL_S, None)
    clock.now += NEEDED_FOR_S
    assert (needs.interval_s("new"), needs.names()) == (IDLE_LIVE_INTERVAL_S, frozenset())


def test_a_worker_keeps_to_what_it_was_sent_last() -> None:
    clock = FakeClock()
    needs = LiveNeeds(clock)
    needs.replace(None)
    clock.now += 1000
    assert needs.interval_s("n1") == LIVE_INTERVAL_S
    needs.replace(["n2"])
    clock.now += 1000
    assert (needs.interval_s("n1"), needs.interval_s("n2")) == (IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S)


def test_a_node_learns_from_the_answer_how_often_it_is_to_post(database: Database) -> None:
    gate = Gate(database)
    assert gate.ship()["live_interval_s"] == IDLE_LIVE_INTERVAL_S
    gate.memory.needs.ask(["n1"])
    assert gate.ship()["live_interval_s"] == LIVE_INTERVAL_S
    assert gate.ship(node="n2", address="127.0.1.2")["live_interval_s"] == IDLE_LIVE_INTERVAL_S


@pytest.mark.parametrize(
    ("job", "open_jobs", "interval_s"),
    [
        ({}, [1], IDLE_LIVE_INTERVAL_S),
        ({}, [], LIVE_INTERVAL_S),
        ({}, [1, 2], LIVE_INTERVAL_S),
        ({"state": "SUSPENDED"}, [1], LIVE_INTERVAL_S),
        ({"state": "COMPLETED"}, [], IDLE_LIVE_INTERVAL_S),
        ({"gpu_index": {}}, [], IDLE_LIVE_INTERVAL_S),
    ],
)
def test_while_a_node_and_slurm_differ_it_posts_each_ten_seconds(
    database: Database, job: dict[str, Any], open_jobs: list[int], interval_s: float
) -> None:
    gate = Gate(database, MemorySlurm(jobs=[queued(**job)]))
    assert gate.ship(open=open_jobs)["live_interval_s"] == interval_s


def test_gpus_are_counted_by_positions_or_else_by_tres() -> None:
    assert n_gpus(queued(gpu_index={"n1": {"gpu": [0, 1]}, "n2": {"gpu": [3]}})) == 3
    assert n_gpus(queued(gpu_index={}, tres_allocated={"gres/gpu": 4})) == 4
    assert n_gpus(queued(gpu_index={}, tres_allocated={})) == 0
