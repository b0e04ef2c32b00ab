"""Run a worker process of slurm-gpudbd, which receives shipments on another CPU core.

python -m slurm_gpu.database.ingest.worker SOCKET # slurm-gpudbd runs this; SOCKET is a descriptor number

A worker accepts connections from the listening socket of slurm-gpudbd, and passes connections with other
requests on to slurm-gpudbd. A worker ends when SOCKET is closed, so it never outlives slurm-gpudbd.
Shipments in progress when a worker ends may or may not be stored, and their nodes receive no answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection

import msgspec
from starlette.types import Receive, Scope, Send

from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.daemon.heap import giving_back
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.database.accounting.import_thread import tune_python
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.http.server import make_server
from slurm_gpu.database.ingest.body_budget import BodyBudget
from slurm_gpu.database.ingest.heartbeat import ANSWERED_WITHIN_S
from slurm_gpu.database.ingest.ingest_server import IngestServer
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.posts import Posts
from slurm_gpu.database.ingest.stall_detector import StallDetector
from slurm_gpu.database.ingest.worker_protocol import (
    ItemsRejected,
    NeededData,
    NodeSeen,
    PassedOn,
    ShipmentStored,
    WindowArrived,
    WorkerMessage,
    WorkerSetup,
    WorkerStatus,
    decode_order,
    encode,
    send_connection,
)
from slurm_gpu.database.live.arrivals import Arrivals
from slurm_gpu.database.live.live_needs import LiveNeeds
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.node_memory import LiveBoard, WindowRequests
from slurm_gpu.database.live.rejections import Rejected, Rejections
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.http.identity import Authenticator
from slurm_gpu.http.server import run
from slurm_gpu.slurm.connect import connect
from slurm_gpu.wire import Live
from slurm_gpu.wire.live import LIVE_INTERVAL_S

log = logging.getLogger("slurm-gpudbd")

STATUS_EACH_S = 1.0
SENT_EACH_S = 0.05
# slurm-gpudbd kills a worker that sends a batch of more than 64 MiB.
_BATCH_BYTES = 1 << 20
# At a thousand posts per second, the queue has room for half a minute in which slurm-gpudbd reads nothing.
_KEPT_BYTES = 64 << 20


class Reports:
    """Queues messages to slurm-gpudbd; a thread sends them in batches, so the event loop never waits."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._messages: deque[msgspec.Raw] = deque()
        self._n_bytes = 0
        self._passed: deque[tuple[PassedOn, socket.socket]] = deque()
        self._has_passed = threading.Event()

    def send(self, message: WorkerMessage) -> None:
        """Send a message with the next batch; drop the oldest messages if too many wait."""
        encoded = msgspec.Raw(encode(message))
        with self._lock:
            self._messages.append(encoded)
            self._n_bytes += len(encoded)
            while self._n_bytes > _KEPT_BYTES:
                self._n_bytes -= len(self._messages.popleft())

    def pass_on(self, connection: socket.socket, early: bytes) -> None:
        """Pass a connection on to slurm-gpudbd immediately, since a client waits for the answer."""
        self._passed.append((PassedOn(early), connection))
        self._has_passed.set()

    def send_all(self) -> None:
        """Send batches and connections until slurm-gpudbd has ended."""
        try:
            while True:
                self._has_passed.wait(SENT_EACH_S)
                self._has_passed.clear()
                while batch := self._batch():
                    self._channel.send_bytes(encode(batch))
                while self._passed:
                    passed, connection = self._passed.popleft()
                    with connection:
                        self._channel.send_bytes(encode([passed]))
                        send_connection(self._channel, connection)
        except OSError:
            os._exit(0)  # a worker that cannot report is useless

    def _batch(self) -> list[msgspec.Raw]:
        batch: list[msgspec.Raw] = []
        n_bytes = 0
        with self._lock:
            while self._messages and n_bytes < _BATCH_BYTES:
                batch.append(self._messages.popleft())
                n_bytes += len(batch[-1])
            self._n_bytes -= n_bytes
        return batch


class _ReportedBoard(LiveBoard):
    """Forwards live values to slurm-gpudbd, which serves them."""

    def __init__(self, clock: Clock, reports: Reports) -> None:
        super().__init__(clock)
        self._reports = reports

    def put(self, node: str, live: Live, interval_s: float = LIVE_INTERVAL_S) -> None:
        self._reports.send(NodeSeen(node, live, interval_s))


class _ReportedArrivals(Arrivals):
    def __init__(self, clock: Clock, reports: Reports) -> None:
        super().__init__(clock)
        self._reports = reports

    def record_shipment(self, node: str, version: str | None = None) -> None:
        self._reports.send(ShipmentStored(node, version))


class _ReportedWindowRequests(WindowRequests):
    def __init__(self, clock: Clock, reports: Reports) -> None:
        super().__init__(clock)
        self._reports = reports

    def arrived(self, node: str, job_id: int) -> None:
        super().arrived(node, job_id)
        self._reports.send(WindowArrived(node, job_id))


class _ReportedRejections(Rejections):
    def __init__(self, clock: Clock, reports: Reports) -> None:
        super().__init__(clock)
        self._reports = reports

    def add(self, rejected: Iterable[Rejected]) -> None:
        self._reports.send(ItemsRejected([item.kind for item in rejected]))


async def _work(channel: Connection, beginning: WorkerSetup) -> None:
    config, clock = beginning.config, SystemClock()
    reports = Reports(channel)
    memory = LiveState(
        _ReportedBoard(clock, reports),
        _ReportedWindowRequests(clock, reports),
        _ReportedArrivals(clock, reports),
        _ReportedRejections(clock, reports),
        LiveNeeds(clock),
    )
    view = SlurmView(connect(), clock)

    def slurm_uid() -> int | None:
        slurm = view.settings()
        return None if slurm is None else slurm.slurm_user_uid

    intake = Intake(Database(beginning.url), view, config.cluster, clock, memory)
    authenticator = Authenticator(config.operators, slurm_uid, clock, config.munge_socket)
    posts = Posts(authenticator, intake, clock)
    stall_detector = StallDetector("POST requests are waiting, and none has been answered", clock)
    ingest_server = IngestServer(posts.take, stall_detector, BodyBudget(clock, beginning.share))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("slurm-gpudbd serves all other requests")

    server = make_server(app, ingest_server)
    ingest_server.others = reports.pass_on
    stall_detectors = stall_detector, intake.storing

    def beat() -> float:
        hung = (
            stall_detector.hangs(clock.monotonic(), ANSWERED_WITHIN_S) for stall_detector in stall_detectors
        )
        reports.send(WorkerStatus(next((why for why in hung if why is not None), None)))
        return STATUS_EACH_S

    def follow() -> None:
        try:
            while True:
                order = decode_order(channel.recv_bytes())
                assert isinstance(order, NeededData)
                memory.needs.replace(order.live)
                memory.wants.replace(order.windows)
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=follow, name="orders", daemon=True).start()
    threading.Thread(target=reports.send_all, name="reports", daemon=True).start()
    await run(server, [socket.socket(fileno=beginning.listener)], beat)


def main() -> None:
    """Run the worker until slurm-gpudbd ends."""
    os.umask(0o077)
    channel = Connection(int(sys.argv[1]))
    beginning = decode_order(channel.recv_bytes())
    assert isinstance(beginning, WorkerSetup)
    log_to_stderr(for_people=beginning.for_people)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    tune_python()
    with giving_back():
        asyncio.run(_work(channel, beginning))
    os._exit(0)


if __name__ == "__main__":
    main()
