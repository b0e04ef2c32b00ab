"""Workers that die, stop, send invalid messages or cannot be started are restarted."""

import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.ingest import worker_pool as workers_module
from slurm_gpu.database.ingest.worker_pool import Workers
from slurm_gpu.database.ingest.worker_protocol import PassedOn, ShipmentStored, WorkerStatus, encode
from slurm_gpu.database.live.memory import LiveState
from tests.database.samples import CLUSTER, FakeClock, record, segment
from tests.database.test_daemon import sequence_numbers, wait_for
from tests.database.test_workers import running, workers_of

SENDS = """import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(bytes.fromhex({!r}))"""
MESSAGES = [ShipmentStored("n1", "1.0"), WorkerStatus()]


def framed(message: bytes) -> bytes:
    """Return a message in the format of multiprocessing.connection."""
    return len(message).to_bytes(4, "big") + message


def sends(monkeypatch: pytest.MonkeyPatch, message: bytes, *, stays: bool) -> None:
    """Let new workers send the given bytes, and then exit or keep running."""
    code = SENDS.format(message.hex()) + ("\nwhile channel.recv(65536): pass" if stays else "")
    monkeypatch.setattr(workers_module, "_COMMAND", (sys.executable, "-S", "-P", "-c", code))


@contextmanager
def workers() -> Iterator[LiveState]:
    """Start one worker, and yield the data that slurm-gpudbd received from it."""
    memory = LiveState.fresh(FakeClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = Workers(
            1, SiteConfig(cluster=CLUSTER), "sqlite://", FakeClock(), memory, listener, for_people=True
        )
        with pool.running(lambda connection, early: connection.close()):
            yield memory


def has_arrivals(memory: LiveState) -> Callable[[], bool]:
    return lambda: "n1" in memory.arrivals.last()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart workers without a pause."""
    monkeypatch.setattr(workers_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(workers_module, "_END_WITHIN_S", 0.1)


def test_a_stopped_worker_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_module, "SILENT_S", 1.0)
    sends(monkeypatch, b"", stays=True)
    with workers() as memory:
        wait_for(lambda: bool(workers_of(os.getpid(), b"fromhex")), lambda: caplog.text)
        (pid,) = workers_of(os.getpid(), b"fromhex")
        sends(monkeypatch, framed(encode(MESSAGES)), stays=True)
        wait_for(has_arrivals(memory), lambda: caplog.text)
        assert pid not in workers_of(os.getpid(), b"fromhex")
        assert "worker 1 was silent for 1 s and was killed; it is restarted" in caplog.text


@pytest.mark.parametrize(
    "nonsense",
    [
        framed(b"\xc1\xc1\xc1\xc1"),
        framed(b"[]"),
        framed(encode(MESSAGES))[:-1],
        framed(encode(MESSAGES)[:-1]),
        b"\x29\x95." * 1000,
    ],
    ids=["no MessagePack", "no word", "broken off", "a part", "a length of 700 MiB"],
)
def test_one_that_sends_nonsense_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nonsense: bytes
) -> None:
    sends(monkeypatch, nonsense, stays=False)
    with workers() as memory:
        wait_for(lambda: "it is restarted" in caplog.text, lambda: caplog.text)
        sends(monkeypatch, framed(encode(MESSAGES)), stays=True)
        wait_for(has_arrivals(memory), lambda: caplog.text)


def test_a_connection_for_which_no_descriptor_is_left_costs_no_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Without free descriptors, the kernel drops the descriptor from the message.
    without = framed(encode([PassedOn(b"GET ")])) + b"\0"
    sends(monkeypatch, without + framed(encode(MESSAGES)), stays=True)
    with workers() as memory:
        wait_for(has_arrivals(memory), lambda: caplog.text)
    assert "a connection that worker 1 passed on is closed: no file descriptor is left" in caplog.text
    assert "restarted" not in caplog.text


def test_a_worker_whose_messages_cannot_be_processed_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(node: str, version: str | None = None) -> None:
        raise RuntimeError("no memory")

    with workers() as memory:
        monkeypatch.setattr(memory.arrivals, "record_shipment", fails)
        sends(monkeypatch, framed(encode(MESSAGES)), stays=True)
        wait_for(lambda: "it is restarted" in caplog.text, lambda: caplog.text)
        monkeypatch.undo()
        sends(monkeypatch, framed(encode(MESSAGES)), stays=True)
        wait_for(has_arrivals(memory), lambda: caplog.text)


def test_without_descriptors_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = socket.socketpair

    def none_left() -> tuple[socket.socket, socket.socket]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return pair()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    monkeypatch.setattr(socket, "socketpair", none_left)
    sends(monkeypatch, framed(encode(MESSAGES)), stays=True)
    with workers() as memory:
        wait_for(
            lambda: "worker 1 cannot be started: Too many open files" in caplog.text, lambda: caplog.text
        )
        monkeypatch.setattr(socket, "socketpair", pair)
        wait_for(has_arrivals(memory), lambda: caplog.text)


def test_a_hung_worker_is_a_hung_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    sends(monkeypatch, framed(encode([WorkerStatus("3 shipments wait")])), stays=True)
    memory = LiveState.fresh(FakeClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = Workers(
            1, SiteConfig(cluster=CLUSTER), "sqlite://", FakeClock(), memory, listener, for_people=True
        )
        assert pool.hangs(0, 0) is None
        with pool.running(lambda connection, early: connection.close()):
            wait_for(lambda: pool.hangs(0, 0) == "3 shipments wait", lambda: "it does not hang")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser")
def test_kill_9_in_the_middle_of_many_stores_loses_nothing_acknowledged(
    tmp_path: Path, munge_socket: str
) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    acknowledged: dict[str, int] = {}
    statuses: list[int] = []
    stop = threading.Event()
    with running(tmp_path, url, 1, munge_socket) as tcp:

        def ship(name: str) -> None:
            seq = 0
            while not stop.is_set():
                seq += 1
                status, _ = tcp.ship(records=[record(segment=name, seq=seq).to_wire()])
                statuses.append(status)
                if status == 200:
                    acknowledged[name] = seq

        threads = [threading.Thread(target=ship, args=(segment(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: statuses.count(200) > 12, tcp.daemon.log)
            (worker,) = workers_of(tcp.daemon)
            os.kill(worker, signal.SIGKILL)
            n = statuses.count(200)
            wait_for(lambda: statuses.count(200) > n + 12, tcp.daemon.log)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        tcp.daemon.stop(signal.SIGKILL)
    assert set(statuses) <= {200, 503, 0}
    stored = sequence_numbers(url)
    assert all(stored[name] >= seq for name, seq in acknowledged.items())
