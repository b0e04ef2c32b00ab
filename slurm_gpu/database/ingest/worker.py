"""A worker of slurm-gpudbd: stores what nodes ship, and perhaps imports, on a processor of its own.

    python -m slurm_gpu.database.ingest.worker SOCKET     # the number of a descriptor; slurm-gpudbd starts it

It ends when its socket does, so it never outlives slurm-gpudbd. What it had under way then is stored or not,
and no node was told that it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable

from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.daemon.heap import giving_back
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.accounting.import_thread import make_importer, tune_python
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.ingest.heartbeat import MANY_SHIPMENTS
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import Rejected
from slurm_gpu.database.ingest.stall_detector import Lane
from slurm_gpu.database.ingest.storage_threads import Parcel, Storers
from slurm_gpu.database.ingest.worker_protocol import (
    Answered,
    Arrived,
    Beginning,
    Fares,
    Heard,
    LiveNeeded,
    NodeSeen,
    Order,
    Posted,
    Splitter,
    WindowWanted,
    Word,
    decode_order,
    failure,
    packed,
)
from slurm_gpu.database.ingest.worker_protocol import ItemsRejected as RejectedKinds
from slurm_gpu.database.live.arrivals import Arrivals
from slurm_gpu.database.live.live_needs import LiveNeeds
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.node_memory import LiveBoard, Wants
from slurm_gpu.database.live.rejections import Rejections
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.connect import connect
from slurm_gpu.wire import Live
from slurm_gpu.wire.live import LIVE_INTERVAL_S

log = logging.getLogger("slurm-gpudbd")

FARES_EACH_S = 1.0


class Notes(deque[Word]):
    """What is to be told besides answers; each goes before the answer to its shipment."""


class _ToldBoard(LiveBoard):
    """Live values are shown by slurm-gpudbd, not here."""

    def __init__(self, clock: Clock, notes: Notes) -> None:
        super().__init__(clock)
        self._notes = notes

    def put(self, node: str, live: Live, interval_s: float = LIVE_INTERVAL_S) -> None:
        self._notes.append(NodeSeen(node, live, interval_s))


class _ToldArrivals(Arrivals):
    def __init__(self, clock: Clock, notes: Notes) -> None:
        super().__init__(clock)
        self._notes = notes

    def heard(self, node: str, version: str | None = None) -> None:
        self._notes.append(Heard(node, version))


class _ToldWants(Wants):
    def __init__(self, clock: Clock, notes: Notes) -> None:
        super().__init__(clock)
        self._notes = notes

    def arrived(self, node: str, job_id: int) -> None:
        super().arrived(node, job_id)
        self._notes.append(Arrived(node, job_id))


class _ToldRejections(Rejections):
    def __init__(self, clock: Clock, notes: Notes) -> None:
        super().__init__(clock)
        self._notes = notes

    def add(self, rejected: Iterable[Rejected]) -> None:
        self._notes.append(RejectedKinds([item.kind for item in rejected]))


class WorkerConnection(asyncio.Protocol):
    """The end of the socket that is the worker's."""

    def __init__(self, database: Database, view: SlurmView, cluster: str, clock: Clock) -> None:
        self._clock, self._notes = clock, Notes()
        self._failures = OutageLog(log, "a shipment was not stored: %s", clock)
        self._memory = LiveState(
            _ToldBoard(clock, self._notes),
            _ToldWants(clock, self._notes),
            _ToldArrivals(clock, self._notes),
            _ToldRejections(clock, self._notes),
            LiveNeeds(clock),
        )
        self._intake = Intake(database, view, cluster, clock, self._memory)
        self._storers = Storers(self._intake, clock)
        self._shipments = Lane("shipments wait", clock)
        self._splitter = Splitter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.WriteTransport | None = None
        self.ended = asyncio.Event()

    def is_behind(self) -> bool:
        """Whether so many shipments wait that the import should give way."""
        return self._shipments.n_waiting > MANY_SHIPMENTS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Something was said."""
        for message in self._splitter.feed(data):
            self._take(decode_order(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """slurm-gpudbd has ended."""
        self.ended.set()

    def tell(self, word: Word) -> None:
        """What is to be told first, and then this."""
        assert self._transport is not None
        words = [packed(self._notes.popleft()) for _ in range(len(self._notes))]
        self._transport.write(b"".join([*words, packed(word)]))

    def fares(self, importer: Importer | None, runs: bool) -> Fares:
        """How it fares now."""
        lane = self._intake.storing
        if importer is None:
            return Fares(lane.n_waiting, lane.since_s)
        status = importer.status
        return Fares(
            lane.n_waiting, lane.since_s, runs, importer.stepped_s, status.last_import_s, status.error
        )

    def _take(self, order: Order) -> None:
        match order:
            case Posted():
                task = asyncio.get_running_loop().create_task(self._store(order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case WindowWanted():
                self._memory.wants.ask(order.node, order.job_id)
            case LiveNeeded():
                self._memory.needs.replace(order.nodes)
            case Beginning():
                raise AssertionError("it has begun")

    async def _store(self, order: Posted) -> None:
        parcel = Parcel(order.body, order.encoding, order.address, order.came_s)
        with self._shipments.waiting(1), parcel.held:
            try:
                body = await self._storers.do(parcel)
            except Exception as error:
                told = failure(order.number, error)
                if told.kind == "unforeseen":
                    self._failures.failed(error)
                self.tell(told)
            else:
                self.tell(Answered(order.number, body))


async def _work(connection: socket.socket, beginning: Beginning) -> None:
    config = beginning.config
    clock, database = SystemClock(), Database(beginning.url)
    view = SlurmView(connect(), clock)
    worker = WorkerConnection(database, view, config.cluster, clock)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: worker, connection)
    importer, stop, thread = None, threading.Event(), None
    if beginning.imports:
        importer = make_importer(config, database, view, clock)
        importer.gives_way = worker.is_behind
        thread = threading.Thread(target=importer.run_until, args=(stop,), name="import", daemon=True)
        thread.start()
    while not worker.ended.is_set():
        worker.tell(worker.fares(importer, thread is not None and thread.is_alive()))
        try:
            await asyncio.wait_for(worker.ended.wait(), FARES_EACH_S)
        except TimeoutError:
            continue
    stop.set()


def main() -> None:
    """Work until slurm-gpudbd ends."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: slurm-gpudbd hears it, too
    connection = socket.socket(fileno=int(sys.argv[1]))
    order = decode_order(_first_message(connection))
    assert isinstance(order, Beginning)
    log_to_stderr(for_people=order.for_people)
    tune_python()
    with giving_back():
        asyncio.run(_work(connection, order))
    # Threads that wait for Slurm or the database hold up nothing: what they have not committed is done again.
    os._exit(0)


def _first_message(connection: socket.socket) -> bytes:
    """Exactly that one: what follows is the loop's."""
    length = int.from_bytes(_exactly(connection, 4), "little")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, n: int) -> bytes:
    data = bytearray()
    while len(data) < n:
        piece = connection.recv(n - len(data))
        if not piece:
            sys.exit(0)  # slurm-gpudbd has ended meanwhile
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main()
