"""Shipping: everything arrives once it can, nothing is sent twice for nothing, nothing is dropped."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.node import ship
from slurm_gpu.node.post import DirectSender, Reply
from slurm_gpu.node.ship import Courier
from slurm_gpu.node.spool import Spool
from slurm_gpu.records import Event, Record
from tests.node.fakes import FakeClock


def record(job_id: int, seq: int = 1, *, final: bool = True) -> Record:
    return Record(
        cluster="lab",
        job_id=job_id,
        restart=0,
        prolog_s=100,
        node="n1",
        boot_id="b",
        segment=f"{job_id:016x}",
        device="GPU-0",
        seq=seq,
        final=final,
        first_s=100,
        last_s=110,
        held_s=10.0,
        sampled_s=10.0,
        util_hist_ms={40: 10_000},
    )


EVENT = Event(node="n1", boot_id="b", n=5, at_s=100, kind="gpu_lost", device="GPU-0")


class Database:
    """Answers as slurm-gpudbd would, or as it is told to."""

    def __init__(self) -> None:
        self.shipments: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.replies: list[Reply] = []
        self.poison: int | None = None  # the job whose record makes a request a 400
        self.too_many: int | None = None
        self.answer: dict[str, Any] = {}

    def __call__(self, body: bytes) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        shipment = json.loads(gzip.decompress(body))
        jobs = [item["job_id"] for item in shipment["records"]]
        if self.poison in jobs:
            return Reply(400, b"no")
        if self.too_many is not None and len(jobs) > self.too_many:
            return Reply(413)
        self.shipments.append(shipment)
        self.sizes.append(len(body))
        return Reply(200, json.dumps(self.answer).encode())

    def jobs(self) -> list[list[int]]:
        return [[item["job_id"] for item in shipment["records"]] for shipment in self.shipments]


class Post:
    def __init__(self, directory: Path) -> None:
        self.clock, self.database = FakeClock(), Database()
        self.spool = Spool(directory)
        self.learnt: list[Any] = []
        self.courier = Courier(
            self.spool,
            DirectSender(self.database),
            self.clock,
            "n1",
            on_jobs=self.learnt.append,
            random_source=random.Random(1),
        )

    def run(self, seconds: float) -> None:
        end = self.clock.now_s + seconds
        while (due := self.courier.step()) <= end:
            self.clock.now_s = max(self.clock.now_s + 0.01, due)
        self.clock.now_s = end


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def test_a_final_record_goes_at_once_and_once(post: Post) -> None:
    post.run(30)
    post.spool.save_record(record(7))
    post.run(1)
    post.run(1000)
    assert post.database.jobs() == [[7]]
    (shipment,) = post.database.shipments
    assert (shipment["wire"], shipment["node"], shipment["boot_id"]) == (1, "n1", "boot-1")
    assert Record.from_wire(shipment["records"][0]) == record(7)


def test_records_of_running_jobs_go_each_five_minutes(post: Post) -> None:
    for minute in range(60):
        post.spool.save_record(record(7, minute + 1, final=False))
        post.run(60)
    assert 9 <= len(post.database.shipments) <= 16
    assert [s["records"][0]["seq"] for s in post.database.shipments] == sorted(
        s["records"][0]["seq"] for s in post.database.shipments
    )


def test_a_final_record_takes_no_running_one_along(post: Post) -> None:
    post.spool.save_record(record(7, final=False))
    post.spool.save_record(record(8))
    post.run(1)
    assert post.database.jobs() == [[8]]


def test_events_go_at_once(post: Post) -> None:
    post.spool.save_event(EVENT)
    post.run(1)
    post.run(100)
    assert [shipment["events"] for shipment in post.database.shipments] == [[EVENT.to_wire()]]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(0, failure="refused"),
        Reply(401),
        Reply(403),
        Reply(426),
        Reply(429),
        Reply(500),
        Reply(200, b"<html>"),
    ],
)
def test_what_fails_for_a_passing_reason_is_tried_again_ever_more_rarely(post: Post, reply: Reply) -> None:
    post.spool.save_record(record(7))
    post.database.replies = [reply] * 30
    post.run(300)
    assert 15 < len(post.database.replies) < 25
    post.run(3600)
    assert post.database.jobs() == [[7]]


def test_retry_after_is_honoured(post: Post) -> None:
    post.spool.save_record(record(7))
    post.database.replies = [Reply(503, retry_after="500")]
    post.run(490)
    assert post.database.jobs() == []
    post.run(30)
    assert post.database.jobs() == [[7]]


def test_a_rejected_record_is_kept_for_people_and_never_sent_again(post: Post, tmp_path: Path) -> None:
    for job in (7, 8):
        post.spool.save_record(record(job))
    post.spool.save_event(EVENT)
    post.database.answer = {
        "rejected": [{"index": 1, "why": "job 8 was never on n1"}, {"index": 99}],
        "rejected_events": [{"index": 0, "why": "no such node"}],
    }
    post.run(1)
    post.run(1000)
    assert post.database.jobs() == [[7, 8]]
    kept = [json.loads(path.read_text()) for path in sorted((tmp_path / "rejected").iterdir())]
    assert [item["why"] for item in kept] == ["no such node", "job 8 was never on n1"]


def test_one_record_that_makes_a_bad_request_costs_no_other(post: Post, tmp_path: Path) -> None:
    for job in range(1, 101):
        post.spool.save_record(record(job))
    post.database.poison = 42
    post.run(10)
    assert sorted(job for jobs in post.database.jobs() for job in jobs) == [
        j for j in range(1, 101) if j != 42
    ]
    assert len(list((tmp_path / "rejected").iterdir())) == 1


def test_too_large_shipments_are_split(post: Post) -> None:
    for job in range(1, 101):
        post.spool.save_record(record(job))
    post.database.too_many = 30
    post.run(10)
    assert sorted(job for jobs in post.database.jobs() for job in jobs) == list(range(1, 101))


def test_a_body_is_never_longer_than_the_contract_says(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "MAX_BODY_BYTES", 2000)
    for job in range(1, 501):
        post.spool.save_record(record(job * 7919))
    post.run(10)
    assert sum(len(jobs) for jobs in post.database.jobs()) == 500
    assert max(post.database.sizes) <= 2000


def test_a_record_saved_while_another_version_is_under_way_is_sent_too(tmp_path: Path) -> None:
    class Slow:
        sent: Sequence[bytes] = ()
        answer: Reply | None = None

        def send(self, body: bytes) -> None:
            self.sent = [*self.sent, body]

        def reply(self) -> Reply | None:
            answer, self.answer = self.answer, None
            return answer

    spool, slow = Spool(tmp_path), Slow()
    courier = Courier(spool, slow, FakeClock(), "n1")
    spool.save_record(record(7, 1))
    courier.step()
    spool.save_record(record(7, 2))
    courier.step()
    assert len(slow.sent) == 1
    slow.answer = Reply(200, b"{}")
    courier.step()
    seqs = [json.loads(gzip.decompress(body))["records"][0]["seq"] for body in slow.sent]
    assert seqs == [1, 2]


def test_what_was_shipped_is_forgotten_and_what_was_not_survives(post: Post, tmp_path: Path) -> None:
    post.spool.save_record(record(7))
    post.run(1)
    post.database.replies = [Reply(500)] * 1000
    post.spool.save_record(record(8))
    post.run(10)
    assert post.spool.commit()
    post.spool.close()
    again = Spool(tmp_path)
    assert [item.wire["job_id"] for item in again.waiting(10)] == [8]


def test_what_the_answer_tells_of_jobs_is_passed_on(post: Post) -> None:
    post.database.answer = {"jobs": {"7": {"shards": 4, "granted_mgpu": 250}, "x": {}, "8": None}}
    post.spool.save_record(record(7))
    post.run(1)
    assert post.learnt == [{7: {"shards": 4, "granted_mgpu": 250}}]
