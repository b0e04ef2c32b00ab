"""Shipments arrive as soon as possible, without needless repetition or loss."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.shipping import shipment
from slurm_gpu.node.shipping.post import Reply
from slurm_gpu.node.shipping.ship import ShipmentScheduler
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import DeviceFacts, Host, Record
from tests.node.fakes import FakeClock
from tests.node.posting import EVENT, Post, host, record


def test_a_final_record_is_sent_immediately_and_once(post: Post) -> None:
    post.run(30)
    post.spool.save_record(record(7))
    post.run(1)
    post.run(1000)
    assert post.database.jobs() == [[7]]
    (shipment,) = post.database.shipments
    assert (shipment["wire"], shipment["node"], shipment["boot_id"]) == (2, "n1", "boot-1")
    assert Record.from_wire(shipment["records"][0]) == record(7)


def begin(post: Post, job_id: int) -> None:
    """Allocate a GPU to the job."""
    key = SegmentKey(**{name: getattr(record(job_id), name) for name in SegmentKey.__dataclass_fields__})
    allocation = Allocation(
        key=key, prolog_at_s=100.0, begun_s=1.0, start_s=1.0, start_wall_s=100.0, positions=(0,)
    )
    post.spool.save_allocation(allocation)


def test_records_of_running_jobs_are_sent_every_five_minutes(post: Post) -> None:
    begin(post, 7)
    for minute in range(60):
        post.spool.save_record(record(7, minute + 1, final=False))
        post.run(60)
    assert 9 <= len(post.database.shipments) <= 16
    assert [s["records"][0]["seq"] for s in post.database.shipments] == sorted(
        s["records"][0]["seq"] for s in post.database.shipments
    )


def test_a_job_of_a_minute_has_been_shipped(post: Post) -> None:
    post.run(30)
    begin(post, 7)
    for seq in range(1, 7):
        post.spool.save_record(record(7, seq, final=False))
        post.run(10)
    assert post.database.jobs() == [[7]]


def test_the_first_record_of_a_running_job_covers_more_than_a_few_seconds(post: Post) -> None:
    """Test that the first record, the only one for five minutes, covers more than one second."""
    post.run(30)
    begin(post, 7)
    start_s = post.clock.now_s
    for seq, allocated_s in enumerate((1.0, 2.0, 4.0, 8.0, 16.0), 1):
        post.run(start_s + allocated_s - post.clock.now_s)
        post.spool.save_record(
            replace(record(7, seq, final=False), allocated_s=allocated_s, sampled_s=allocated_s / 2)
        )
    post.run(4)
    (shipped,) = [r for shipment in post.database.shipments for r in shipment["records"]]
    assert shipped["allocated_s"] in (8.0, 16.0)


def test_a_job_that_ends_in_its_first_seconds_is_shipped_immediately(post: Post) -> None:
    begin(post, 7)
    post.spool.save_record(replace(record(7, 1, final=False), allocated_s=1.0, sampled_s=0.5))
    post.run(20)
    assert post.database.jobs() == []
    post.spool.save_record(replace(record(7, 2), allocated_s=2.0, sampled_s=1.5))
    post.run(2)
    assert post.database.jobs() == [[7]]


def test_a_final_record_is_sent_without_those_of_running_jobs(post: Post) -> None:
    post.spool.save_record(record(7, final=False))
    post.spool.save_record(record(8))
    post.run(1)
    assert post.database.jobs() == [[8]]


def test_events_are_sent_immediately(post: Post) -> None:
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
        Reply(200, b'{"status": "ok"}'),  # for example from a proxy whose server is unreachable
        Reply(200, b'{"stored": true}'),
    ],
)
def test_temporary_failures_are_retried_with_backoff(post: Post, reply: Reply) -> None:
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


def test_a_rejected_record_is_stored_and_never_sent_again(post: Post, tmp_path: Path) -> None:
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


def test_a_record_that_causes_a_bad_request_affects_no_other(post: Post, tmp_path: Path) -> None:
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


def test_a_body_never_exceeds_the_maximum_length(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "MAX_BODY_BYTES", 2000)
    for job in range(1, 501):
        post.spool.save_record(record(job * 7919))
    post.run(10)
    assert sum(len(jobs) for jobs in post.database.jobs()) == 500
    assert max(post.database.sizes) <= 2000


def test_a_record_updated_while_being_sent_is_sent_again(tmp_path: Path) -> None:
    class Slow:
        sent: Sequence[bytes] = ()
        answer: Reply | None = None

        def send(self, body: bytes) -> None:
            self.sent = [*self.sent, body]

        def reply(self) -> Reply | None:
            answer, self.answer = self.answer, None
            return answer

    spool, slow, clock = Spool(tmp_path), Slow(), FakeClock()
    scheduler = ShipmentScheduler(spool.queue, slow, clock, "n1")
    spool.save_record(record(7, 1))
    scheduler.step()
    clock.advance(1)
    scheduler.step()
    spool.save_record(record(7, 2))
    scheduler.step()
    assert len(slow.sent) == 1
    slow.answer = Reply(200, b'{"stored": 1}')
    scheduler.step()
    seqs = [json.loads(gzip.decompress(body))["records"][0]["seq"] for body in slow.sent]
    assert seqs == [1, 2]


def test_shipped_records_are_removed_and_others_survive(post: Post, tmp_path: Path) -> None:
    post.spool.save_record(record(7))
    post.run(1)
    post.database.replies = [Reply(500)] * 1000
    post.spool.save_record(record(8))
    post.run(10)
    assert post.spool.commit()
    post.spool.close()
    again = Spool(tmp_path)
    assert [item.wire["job_id"] for item in again.queue.waiting(10)] == [8]


def test_facts_about_jobs_in_an_answer_are_forwarded(post: Post) -> None:
    known = {"shards": 4, "granted_mgpu": 250}
    post.database.answer = {"jobs": {"7": known, "x": {}, "8": None, "9" * 5000: {}}}
    post.spool.save_record(record(7))
    post.run(1)
    assert post.node.updated_jobs == [{7: known}]


def test_host_records_are_stored_and_shipped_like_records(post: Post, tmp_path: Path) -> None:
    post.spool.save_host(host(7, 1, final=False))
    post.spool.save_host(host(8))
    post.spool.save_host(host(9))
    post.database.answer = {"rejected_hosts": [{"index": 1, "why": "job 9 was never on n1"}]}
    post.run(2)
    assert [[item["job_id"] for item in s["hosts"]] for s in post.database.shipments] == [[8, 9]]
    assert [path.name for path in (tmp_path / "rejected").iterdir()] == ["host_0000000000000009.json"]
    post.run(360)
    assert [item["job_id"] for item in post.database.shipments[-1]["hosts"]] == [7]
    assert Host.from_wire(post.database.shipments[0]["hosts"][0]) == host(8)


def test_a_thousand_jobs_that_end_together_are_split_into_small_shipments(post: Post) -> None:
    for job in range(1, 1001):
        post.spool.save_record(record(job))
        post.spool.save_host(host(job))
    post.run(6)
    sizes = [len(s["records"]) + len(s["hosts"]) for s in post.database.shipments]
    assert sum(sizes) == 2000
    assert max(sizes) <= 100
    assert post.spool.queue.urgent(1) == 0


def test_nodes_of_a_cluster_send_at_different_times(tmp_path: Path) -> None:
    moments = []
    for node in range(100):
        post = Post(tmp_path / str(node), seed=node)
        post.spool.save_record(record(7))
        moments.append(post.scheduler.step() - post.clock.now_s)
        post.spool.close()
    assert all(0 <= moment <= 1 for moment in moments)
    in_tenths = [sum(1 for m in moments if tenth / 10 <= m < (tenth + 1) / 10) for tenth in range(10)]
    assert max(in_tenths) < 25


def test_has_is_sent_only_to_a_slurm_gpudbd_that_answers_lacks(post: Post) -> None:
    post.node.now = {"at_s": 1.0}
    post.node.here = [DeviceFacts(node="n1", uuid="GPU-0", at_s=7)]
    post.run(60)
    assert not any("has" in shipment for shipment in post.database.shipments), "an older slurm-gpudbd"
    post.database.answer = {"lacks": []}
    post.run(60)
    assert post.database.shipments[-1]["has"] == {"devices": {"at_s": 7, "n": 1}}
    assert sum(bool(shipment["devices"]) for shipment in post.database.shipments) == 1


@pytest.mark.parametrize("lacks", [5, None, {"devices": 1}, [5, None, "steps", "future items"]])
def test_invalid_lacks_are_ignored(post: Post, lacks: object) -> None:
    post.node.now = {"at_s": 1.0}
    post.node.here = [DeviceFacts(node="n1", uuid="GPU-0", at_s=7)]
    post.database.answer = {"lacks": lacks}
    post.run(600)
    assert sum(bool(shipment["devices"]) for shipment in post.database.shipments) == 1
