"""slurm-gpudbd sends keep-alive messages to systemd's watchdog only while its work progresses."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from slurm_gpu.daemon.systemd import STATUS_EACH_S, Notifier
from slurm_gpu.database.accounting.importer import ImportStatus
from slurm_gpu.database.ingest.heartbeat import ANSWERED_WITHIN_S, IMPORT_STEP_WITHIN_S, Answering, Heartbeat
from slurm_gpu.database.ingest.stall_detector import StallDetector
from tests.database.samples import FakeClock

WATCHDOG_S = 120.0


@dataclass
class Import:
    stepped_s: float
    status: ImportStatus = field(default_factory=ImportStatus)
    runs: bool = True
    interval_s: float = 60.0


@dataclass
class Daemon:
    """The heartbeat of slurm-gpudbd, and requests that continue until the test ends them."""

    systemd: socket.socket
    clock: FakeClock
    importing: Import
    answering: Answering
    storing: StallDetector
    heartbeat: Heartbeat

    def received(self) -> list[str]:
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.systemd.recv(4096).decode())
        return found

    def live(self, seconds: float) -> list[str]:
        """Advance the clock without progress of the import; return the messages to systemd."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.now += max(0.1, self.heartbeat.beat())
        return self.received()


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Send one message immediately and the other when the request's event is set."""
    if scope["fails"]:
        raise RuntimeError("no answer")
    await scope["begin"].wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await scope["end"].wait()


def request(method: str, *, fails: bool = False) -> Scope:
    return {"method": method, "begin": asyncio.Event(), "end": asyncio.Event(), "fails": fails}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        clock = FakeClock()
        reported = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        importing = Import(clock.monotonic())
        answering = Answering(answer, clock)
        storing = StallDetector("shipments wait", clock)
        stall_detectors = (*answering.stall_detectors, storing)
        heartbeat = Heartbeat(Notifier(reported), clock, stall_detectors, importing, lambda: importing.runs)
        yield Daemon(systemd, clock, importing, answering, storing, heartbeat)


def played(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


async def begun(daemon: Daemon, scope: Scope) -> "asyncio.Task[None]":
    async def nothing(*_: Any) -> Any:
        return None

    task = asyncio.ensure_future(daemon.answering(scope, nothing, nothing))
    await asyncio.sleep(0)  # run the request until it waits
    return task


def test_it_is_ready_at_the_first_beat_and_notified_without_requests(daemon: Daemon) -> None:
    received = daemon.live(600)
    assert received[0] == "READY=1"
    assert received.count("READY=1") == 1
    assert 600 / WATCHDOG_S < received.count("WATCHDOG=1") <= 600 / (WATCHDOG_S / 2)
    assert "STATUS=answers; accounting is read" in received


def test_the_status_has_the_reason_why_accounting_is_not_read(daemon: Daemon) -> None:
    daemon.importing.status = ImportStatus(None, "sacct is not on the PATH")
    received = daemon.live(STATUS_EACH_S)
    assert "STATUS=answers; accounting cannot be read: sacct is not on the PATH" in received
    assert "WATCHDOG=1" in received


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_of_which_none_is_answered_are_a_hung_daemon(daemon: Daemon, method: str) -> None:
    async def story() -> None:
        stuck = [await begun(daemon, request(method)) for _ in range(3)]
        daemon.live(ANSWERED_WITHIN_S + WATCHDOG_S)
        # The progress of other requests does not count as progress of the waiting ones.
        other = request("POST" if method == "GET" else "GET")
        other["begin"].set()
        other["end"].set()
        await (await begun(daemon, other))
        assert "WATCHDOG=1" not in daemon.live(WATCHDOG_S)
        for task in stuck:
            task.cancel()

    played(story)


def test_hanging_storage_alone_is_a_hung_daemon_until_it_continues(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Answer other requests meanwhile, such as live values and shipments over the limit."""

    async def story() -> None:
        daemon.storing.begin()
        for _ in range(int(ANSWERED_WITHIN_S / 60) + 2):
            daemon.live(60)
            other = request("POST")
            other["begin"].set()
            other["end"].set()
            await (await begun(daemon, other))
        assert "WATCHDOG=1" not in daemon.live(WATCHDOG_S)
        daemon.storing.end()
        assert "WATCHDOG=1" in daemon.live(WATCHDOG_S)
        daemon.storing.begin()
        daemon.live(ANSWERED_WITHIN_S + WATCHDOG_S)

    played(story)
    reported = [record.getMessage().partition(" for ")[0] for record in caplog.records]
    assert reported == [
        "1 shipments wait",
        "the hang has ended; systemd's watchdog is notified again",
        "1 shipments wait",
    ]


def test_slow_answers_are_answers(daemon: Daemon) -> None:
    async def story() -> None:
        waiting = [request("GET") for _ in range(4)]
        tasks = [await begun(daemon, scope) for scope in waiting]
        for scope, task in zip(waiting, tasks, strict=True):
            assert "WATCHDOG=1" in daemon.live(ANSWERED_WITHIN_S - STATUS_EACH_S)
            scope["begin"].set()
            scope["end"].set()
            await task
        assert "WATCHDOG=1" in daemon.live(2 * ANSWERED_WITHIN_S)

    played(story)


def test_a_long_stream_is_answered_when_it_begins(daemon: Daemon) -> None:
    async def story() -> None:
        stream = request("GET")
        stream["begin"].set()
        task = await begun(daemon, stream)
        await asyncio.sleep(0)
        assert daemon.live(3 * ANSWERED_WITHIN_S)[-1] == "WATCHDOG=1"
        stream["end"].set()
        await task

    played(story)


def test_a_request_that_fails_waits_no_longer(daemon: Daemon) -> None:
    async def story() -> None:
        with pytest.raises(RuntimeError):
            await (await begun(daemon, request("POST", fails=True)))
        assert "WATCHDOG=1" in daemon.live(2 * ANSWERED_WITHIN_S)

    played(story)


def test_an_import_that_has_ended_is_a_hung_daemon(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.live(WATCHDOG_S)
    daemon.importing.runs = False
    assert "WATCHDOG=1" not in daemon.live(2 * WATCHDOG_S)
    assert [record.getMessage() for record in caplog.records] == [
        "the import has ended; systemd's watchdog is no longer notified"
    ]


def test_an_import_that_does_not_get_on_is_a_hung_daemon(daemon: Daemon) -> None:
    assert "WATCHDOG=1" in daemon.live(IMPORT_STEP_WITHIN_S + WATCHDOG_S)
    assert "WATCHDOG=1" not in daemon.live(2 * WATCHDOG_S)
    daemon.importing.stepped_s = daemon.clock.monotonic()
    assert "WATCHDOG=1" in daemon.live(WATCHDOG_S)
