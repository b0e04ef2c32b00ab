"""Test the reports of a worker to slurm-gpudbd, which may read them late."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection

import pytest

from slurm_gpu.database.ingest import worker
from slurm_gpu.database.ingest.worker import Reports
from slurm_gpu.database.ingest.worker_protocol import (
    PassedOn,
    ShipmentStored,
    decode_messages,
    encode,
    receive_connection,
)


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """Return both ends of a channel: the worker's and slurm-gpudbd's."""
    theirs, ours = socket.socketpair()
    with Connection(theirs.detach()) as channel, Connection(ours.detach()) as slurm_gpudbd:
        yield channel, slurm_gpudbd


@pytest.fixture(autouse=True)
def _ends_with_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(worker.os, "_exit", leave)


def test_waiting_messages_are_bounded_and_sent_in_small_batches(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_KEPT_BYTES", 100_000)
    monkeypatch.setattr(worker, "_BATCH_BYTES", 10_000)
    channel, slurm_gpudbd = ends
    reports = Reports(channel)
    for n in range(1000):
        reports.send(ShipmentStored(str(n), "v" * 1000))
    threading.Thread(target=reports.send_all, daemon=True).start()
    nodes: list[int] = []
    while nodes[-1:] != [999]:
        batch = slurm_gpudbd.recv_bytes(12_000)
        nodes += [int(word.node) for word in decode_messages(batch) if isinstance(word, ShipmentStored)]
    assert nodes == list(range(nodes[0], 1000))
    assert len(encode([ShipmentStored("999", "v" * 1000)])) * len(nodes) <= 101_000


def test_a_connection_is_passed_on_without_waiting_for_a_batch(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SENT_EACH_S", 3600.0)
    channel, slurm_gpudbd = ends
    reports = Reports(channel)
    threading.Thread(target=reports.send_all, daemon=True).start()
    peer, passed = socket.socketpair()
    with closing(peer):
        reports.pass_on(passed, b"GET ")
        assert slurm_gpudbd.poll(20)
        assert decode_messages(slurm_gpudbd.recv_bytes()) == [PassedOn(b"GET ")]
        adopted = receive_connection(slurm_gpudbd)
        assert adopted is not None
        with adopted:
            adopted.sendall(b"answer")
        assert peer.recv(100) == b"answer"
