"""Devices, live values and windows are shipped in addition to the spool and delay no record."""

import gzip
import json
from dataclasses import replace

import pytest

from slurm_gpu.node.shipping.post import DirectSender, Reply
from slurm_gpu.wire import DeviceFacts
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S
from tests.node.posting import Post, record

DEVICES = [DeviceFacts(uuid=f"GPU-{n}", node="n1", at_s=100, index=n, driver="550.1") for n in range(2)]


def test_devices_are_sent_together_at_the_start_and_after_changes(post: Post) -> None:
    post.database.replies = [Reply(500)]
    post.node.here = DEVICES
    post.run(60)
    later = [replace(facts, at_s=160) for facts in DEVICES]
    post.node.here = later
    post.run(60)
    gone = [replace(later[1], at_s=220)]
    post.node.here = gone
    post.run(60)
    shipped = [s["devices"] for s in post.database.shipments]
    assert shipped == [[facts.to_wire() for facts in DEVICES], [gone[0].to_wire()]]


def test_live_values_are_sent_every_ten_seconds_and_never_stored(post: Post) -> None:
    post.node.jobs, post.node.now = [7, 8], {"at_s": 1}
    post.run(100)
    assert 9 <= len(post.database.shipments) <= 12
    assert all((s["live"], s["open"]) == ({"at_s": 1}, [7, 8]) for s in post.database.shipments)
    sent = len(post.database.shipments)
    post.database.replies = [Reply(503)] * 1000
    for second in range(300):
        post.node.now = {"at_s": second}
        post.run(1)
    post.database.replies = []
    post.node.now = {"at_s": 1000}
    post.run(100)
    assert {s["live"]["at_s"] for s in post.database.shipments[sent:]} == {1000}


def send_rarely(post: Post) -> None:
    """Set up a node that has run for some time and sends live values only every minute."""
    post.node.jobs, post.node.now, post.node.here = [7], {"at_s": 1}, DEVICES
    post.database.answer = {"live_interval_s": IDLE_LIVE_INTERVAL_S}
    post.run(120)
    post.database.shipments.clear()


def test_live_values_without_readers_are_sent_every_minute(post: Post) -> None:
    send_rarely(post)
    post.run(600)
    assert 9 <= len(post.database.shipments) <= 11
    assert all(shipment["live"] for shipment in post.database.shipments)


def test_live_values_with_readers_are_sent_every_ten_seconds_from_the_next_post(post: Post) -> None:
    send_rarely(post)
    post.database.answer = {"live_interval_s": LIVE_INTERVAL_S}
    post.run(66)
    sent = len(post.database.shipments)
    assert sent >= 1
    post.run(60)
    assert 5 <= len(post.database.shipments) - sent <= 7


def test_an_older_slurm_gpudbd_receives_live_values_every_ten_seconds(post: Post) -> None:
    send_rarely(post)
    post.database.answer = {}
    post.run(66)
    post.database.shipments.clear()
    post.run(60)
    assert 5 <= len(post.database.shipments) <= 7


@pytest.mark.parametrize("interval_s", [-1, 0, 1e9, float("nan"), "x", None])
def test_an_invalid_interval_is_limited_to_the_known_ones(post: Post, interval_s: object) -> None:
    send_rarely(post)
    post.database.answer = {"live_interval_s": interval_s}
    post.run(600)
    assert 9 <= len(post.database.shipments) <= 67


def test_changes_on_the_node_are_sent_within_ten_seconds(post: Post) -> None:
    send_rarely(post)
    post.node.here = DEVICES[:1]
    post.run(11)
    assert post.database.shipments[-1]["devices"] == [DEVICES[0].to_wire()]
    post.run(70)
    post.node.jobs = [7, 8]
    sent = len(post.database.shipments)
    post.run(11)
    assert post.database.shipments[sent]["open"] == [7, 8]
    assert post.database.shipments[sent]["live"]


def test_after_a_new_job_values_are_sent_every_ten_seconds_for_a_minute(post: Post) -> None:
    send_rarely(post)
    post.node.jobs = [8]
    post.run(66)
    assert 6 <= len(post.database.shipments) <= 8
    sent = len(post.database.shipments)
    post.run(240)
    assert 3 <= len(post.database.shipments) - sent <= 5


def test_the_first_record_of_a_job_is_not_delayed_by_a_minute(post: Post) -> None:
    send_rarely(post)
    post.spool.save_record(record(7, final=False))
    post.run(11)
    assert post.database.jobs() == [[7]]


def test_a_failed_post_is_retried_every_ten_seconds(post: Post) -> None:
    """Test retries, because a restarted slurm-gpudbd has lost its list of nodes."""
    send_rarely(post)
    post.database.replies = [Reply(503)]
    post.run(66 + 3 + 11)
    assert len(post.database.shipments) >= 1


def test_a_shipment_of_records_contains_live_values(post: Post) -> None:
    """Test that each post has live values, because doctor compares their time with the last post's."""
    send_rarely(post)
    post.run(30)
    sent = len(post.database.shipments)
    post.spool.save_record(record(9))
    post.run(11)
    at = next(s for s in post.database.shipments[sent:] if s["records"])
    assert at["live"]


def test_a_final_record_is_sent_together_with_due_values(post: Post) -> None:
    post.node.now = {"at_s": 1}
    post.node.here = DEVICES
    post.run(30)
    sent = len(post.database.shipments)
    post.spool.save_record(record(7))
    post.run(1)
    (shipment,) = post.database.shipments[sent:]
    assert shipment["records"]


def test_the_node_receives_jobs_that_slurm_reports_as_ended(post: Post) -> None:
    post.node.jobs = [7]
    post.database.answer = {"ended": {"7": {"restart": 0, "end_s": 90}, "y": {}}, "want": []}
    post.run(11)
    assert post.node.ended_jobs == [{7: {"restart": 0, "end_s": 90}}]


def test_a_requested_window_is_sent_once_with_the_next_live_values(post: Post) -> None:
    post.node.jobs = [7, 8]
    post.database.answer = {"want": [8, "x"]}
    post.run(10)
    post.database.answer = {}
    post.run(40)
    with_windows = [s["windows"] for s in post.database.shipments if s["windows"]]
    assert post.node.requested_windows == [[8]]
    assert [[window["job_id"] for window in some] for some in with_windows] == [[8]]


def test_windows_that_do_not_fit_delay_no_record(post: Post) -> None:
    post.node.jobs, post.node.window_bytes = [7], 300_000
    post.database.answer = {"want": [7, 8, 9, 10]}
    post.run(10)
    post.spool.save_record(record(7))
    post.run(10)
    assert [7] in post.database.jobs()
    assert max(post.database.sizes) <= 1 << 20
    assert any(s["windows"] for s in post.database.shipments)


def test_a_database_that_rejects_live_values_still_receives_records(post: Post) -> None:
    post.node.now = {"at_s": 1}
    post.node.here = DEVICES

    def old(body: bytes) -> Reply:
        shipment = json.loads(gzip.decompress(body))
        if shipment["devices"] or "live" in shipment:
            return Reply(400, b"what is this?")
        return post.database(body)

    post.scheduler._sender = DirectSender(old)
    post.spool.save_record(record(7))
    post.run(20)
    assert [7] in post.database.jobs()


def test_failing_live_values_cost_no_record(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post.node, "live", lambda: 1 / 0)
    post.spool.save_record(record(7))
    post.run(30)
    assert post.database.jobs() == [[7]]
