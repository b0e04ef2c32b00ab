"""Processes of slurm-gpudbd's own that store what nodes ship: Python computes on one processor in each.

slurm-gpudbd itself answers all requests, and keeps what is kept in memory: live values, which nodes were
heard of, windows that are wanted. A worker has nothing that is missed when it dies: what it was storing is
answered with 503, and comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable

from msgspec.structs import replace

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.accounting.importer import ImportStatus
from slurm_gpu.database.http.request import RETRY_AFTER_S
from slurm_gpu.database.ingest.shipment import Rejected, ShipmentError
from slurm_gpu.database.ingest.stall_detector import hang_of
from slurm_gpu.database.ingest.storage_threads import WAITING_BYTES, Parcel
from slurm_gpu.database.ingest.worker_protocol import (
    Answered,
    Arrived,
    Beginning,
    Failed,
    Fares,
    Heard,
    LiveNeeded,
    NodeSeen,
    Order,
    Posted,
    Splitter,
    WindowWanted,
    Word,
    decode_word,
    error_of,
    packed,
)
from slurm_gpu.database.ingest.worker_protocol import ItemsRejected as RejectedKinds
from slurm_gpu.database.live.memory import LiveState

log = logging.getLogger("slurm-gpudbd")

_COMMAND = (sys.executable, "-S", "-P", "-m", "slurm_gpu.database.ingest.worker")
SILENT_S = 120.0
"""It tells each second how it fares. One that has not for so long hangs, and is killed."""
_LONG_S = 60.0
"""Who lived for so long is started again at once."""
_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
_END_WITHIN_S = 0.5
"""One whose socket was closed has nothing more to do; who waited for it has been told to come again."""


class Workers:
    """So many processes; a node's shipments all go to the same one."""

    def __init__(
        self, n: int, config: SiteConfig, url: str, clock: Clock, memory: LiveState, *, for_people: bool
    ) -> None:
        """`url` is the database's; the first of them imports. None is started before `run`."""
        self._workers = [
            _Worker(place, Beginning(config, url, for_people, imports=place == 0), clock, memory)
            for place in range(n)
        ]
        self.importing = FarImport(self._workers[0], config.import_interval_s, clock)

    async def run(self) -> None:
        """Keep them alive, until this is cancelled."""
        await asyncio.gather(*(worker.keep() for worker in self._workers))

    async def do(self, parcel: Parcel) -> bytes:
        """Have it stored; its answer, or an error that is one."""
        place = zlib.crc32((parcel.address or "").encode()) % len(self._workers)
        return await self._workers[place].store(parcel)

    def ask(self, node: str, job_id: int) -> None:
        """Somebody waits for the window of this job from this node."""
        for worker in self._workers:
            worker.tell(WindowWanted(node, job_id))

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """In words, where shipments wait for the database and none was stored or refused within that time."""
        found = (worker.hangs(now_s, within_s) for worker in self._workers)
        return next((hung for hung in found if hung is not None), None)


class FarImport:
    """The import, as slurm-gpudbd hears of it."""

    def __init__(self, worker: _Worker, interval_s: float, clock: Clock) -> None:
        self._worker, self.interval_s = worker, interval_s
        self._since_s = clock.monotonic()

    @property
    def status(self) -> ImportStatus:
        """As it was told last."""
        told = self._worker.told
        return ImportStatus() if told is None else ImportStatus(told.last_import_s, told.import_error)

    @property
    def stepped_s(self) -> float:
        """When it last got on, by Clock.monotonic()."""
        told = self._worker.told
        return self._since_s if told is None else told.stepped_s

    def runs(self) -> bool:
        """Whether it goes on, or will once its worker is there again."""
        fares = self._worker.fares
        return fares is None or fares.importing


class _Worker:
    """One of them, started again whenever it ends."""

    def __init__(self, place: int, beginning: Beginning, clock: Clock, memory: LiveState) -> None:
        self._name = f"worker {place + 1}"
        self._beginning, self._clock, self._memory = beginning, clock, memory
        self._talk: _Talk | None = None
        self._needed: frozenset[str] | None = frozenset()
        """The nodes whose live values are needed, as it was told last."""
        self._ends = OutageLog(log, f"{self._name} %s", clock, over=f"{self._name} runs again")
        self.fares: Fares | None = None
        """While it lives, and has told something."""
        self.told: Fares | None = None
        """The last that was heard of it, or of those before it."""

    async def keep(self) -> None:
        """Start it again and again."""
        pause_s = _PAUSE_S
        while True:
            began_s = self._clock.monotonic()
            try:
                why = await self._live_once()
            except OSError as error:  # such as no descriptor left: that may pass
                why = f"cannot be started: {error.strerror or error}"
            except Exception as error:
                self._ends.failed(error)
                why = "failed"
            if self._clock.monotonic() - began_s >= _LONG_S:
                pause_s = _PAUSE_S
            self._ends.failed(f"{why}; it is restarted in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    async def store(self, parcel: Parcel) -> bytes:
        """Have it stored."""
        if self._talk is None:
            raise ShipmentError(503, f"{self._name} is being started again", RETRY_AFTER_S)
        return await self._talk.store(parcel)

    def tell(self, order: Order) -> None:
        """What it hears only if it lives."""
        if self._talk is not None:
            self._talk.tell(order)

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """In words, where shipments wait there."""
        if self.fares is None:
            return None
        what = "shipments wait for the database, and none was stored or refused"
        return hang_of(what, self.fares.n_waiting, now_s - self.fares.waiting_since_s, within_s)

    async def _live_once(self) -> str:
        """How it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._start(theirs)
            except BaseException:
                ours.close()
                raise
        talk = _Talk(self._name, self._memory, self._note)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: talk, ours)
            talk.tell(self._beginning)
            self._talk, self._needed = talk, frozenset()
            return await self._ended(talk, process)
        finally:
            self._talk = None
            self.fares = None
            talk.close(f"{self._name} has ended")
            await asyncio.shield(_reaped(process))

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [*_COMMAND, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
        )

    async def _ended(self, talk: _Talk, process: subprocess.Popen[bytes]) -> str:
        heard_s = self._clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(talk.ended.wait(), SILENT_S / 10)
                return "has ended"
            if talk.was_heard():
                heard_s = self._clock.monotonic()
            elif self._clock.monotonic() - heard_s > SILENT_S:
                process.kill()
                return f"has said nothing for {SILENT_S:g} s, and was killed"

    def _note(self, fares: Fares) -> None:
        if fares.last_import_s is None and self.told is not None:
            # It was started again: what the one before it imported is there.
            fares = replace(fares, last_import_s=self.told.last_import_s)
        self.fares = self.told = fares
        if (needed := self._memory.needs.names()) != self._needed:
            self._needed = needed
            self.tell(LiveNeeded(needed))
        self._ends.worked()


class _Talk(asyncio.Protocol):
    """slurm-gpudbd's end of a worker's socket."""

    def __init__(self, name: str, memory: LiveState, note: Callable[[Fares], None]) -> None:
        self._name, self._memory, self._note = name, memory, note
        self._splitter = Splitter()
        self._transport: asyncio.WriteTransport | None = None
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._n_asked, self._waiting_bytes, self._heard = 0, 0, False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Something was said."""
        self._heard = True
        for message in self._splitter.feed(data):
            self._take(decode_word(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker has ended."""
        self.close(f"{self._name} has ended")

    def close(self, why: str) -> None:
        """Nothing comes any more: whoever waits is to come again."""
        self.ended.set()
        if self._transport is not None:
            self._transport.close()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(ShipmentError(503, why, RETRY_AFTER_S))

    def was_heard(self) -> bool:
        """Whether it has said anything since this was asked last."""
        heard, self._heard = self._heard, False
        return heard

    def tell(self, order: Order) -> None:
        """Say it, if anybody listens."""
        if self._transport is not None and not self.ended.is_set():
            self._transport.write(packed(order))

    async def store(self, parcel: Parcel) -> bytes:
        """Have it stored."""
        n_bytes = len(parcel.body)
        if self._waiting_bytes + n_bytes > WAITING_BYTES:
            why = f"shipments of {WAITING_BYTES >> 20} MiB wait for {self._name} already"
            raise ShipmentError(503, why, RETRY_AFTER_S)
        self._n_asked += 1
        number = self._n_asked
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._waiting_bytes += n_bytes
        self.tell(Posted(number, parcel.body, parcel.encoding, parcel.address, parcel.came_s))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)
            self._waiting_bytes -= n_bytes
            del answer  # an error knows this frame, and what was sent

    def _take(self, word: Word) -> None:
        match word:
            case Answered():
                answer = self._asked.get(word.number)
                if answer is not None and not answer.done():
                    answer.set_result(word.body)
            case Failed():
                answer = self._asked.get(word.number)
                if answer is not None and not answer.done():
                    answer.set_exception(error_of(word))
            case NodeSeen():
                self._memory.board.put(word.node, word.live, word.interval_s)
            case Heard():
                self._memory.arrivals.heard(word.node, word.version)
            case Arrived():
                self._memory.wants.arrived(word.node, word.job_id)
            case RejectedKinds():
                self._memory.rejections.add(Rejected(0, "", kind) for kind in word.kinds)
            case Fares():
                self._note(word)


async def _reaped(process: subprocess.Popen[bytes]) -> None:
    """Its socket has ended, and so should it."""

    def wait() -> None:
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    await asyncio.get_running_loop().run_in_executor(None, wait)
