"""Workers that die, stand still, talk nonsense or cannot be started: slurm-gpudbd goes on with others."""

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.accounting.importer import ImportStatus
from slurm_gpu.database.ingest import worker_pool as workers_module
from slurm_gpu.database.ingest.shipment import ShipmentError
from slurm_gpu.database.ingest.storage_threads import Parcel
from slurm_gpu.database.ingest.worker_pool import Workers
from slurm_gpu.database.ingest.worker_protocol import Answered, Fares, packed
from slurm_gpu.database.live.memory import LiveState
from tests.database.samples import CLUSTER, FakeClock, record, segment
from tests.database.test_daemon import sequence_numbers, wait_for
from tests.database.test_workers import running, workers_of

_WITHIN_S = 20.0
FARES = Fares(0, 0.0, importing=True, stepped_s=7.0, last_import_s=5.0)
TALKS = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(bytes.fromhex({!r}))"


def says(monkeypatch: pytest.MonkeyPatch, words: bytes, *, stays: bool) -> None:
    """Workers that are started from now on say this, and end, or stay as long as they may."""
    code = TALKS.format(words.hex()) + ("\nwhile s.recv(65536): pass" if stays else "")
    monkeypatch.setattr(workers_module, "_COMMAND", (sys.executable, "-S", "-P", "-c", code))


def with_workers(url: str, story: Callable[[Workers, FakeClock], Awaitable[None]]) -> None:
    """One of them, as long as the story lasts."""

    async def told() -> None:
        clock = FakeClock()
        workers = Workers(1, SiteConfig(cluster=CLUSTER), url, clock, LiveState.fresh(clock), for_people=True)
        run = asyncio.create_task(workers.run())
        try:
            await story(workers, clock)
            assert not run.done()
        finally:
            run.cancel()
            with suppress(asyncio.CancelledError):
                await run

    asyncio.run(told())


async def until(condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    end_s = time.monotonic() + _WITHIN_S
    while not condition():
        assert time.monotonic() < end_s
        meanwhile()
        await asyncio.sleep(0.01)


def parcel(clock: FakeClock) -> Parcel:
    return Parcel(b"{}", "", None, clock.monotonic())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is started again without a pause."""
    monkeypatch.setattr(workers_module, "_PAUSE_S", 0.01)


@pytest.mark.usefixtures("at_once")
def test_one_that_stands_still_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_module, "SILENT_S", 1.0)

    async def story(workers: Workers, clock: FakeClock) -> None:
        def time_passes() -> None:
            clock.now += 0.05

        await until(lambda: workers.importing.status.error is not None)  # it finds no tables
        (pid,) = workers_of(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(workers.do(parcel(clock)))
        says(monkeypatch, packed(FARES), stays=True)
        await until(asked.done, time_passes)
        with pytest.raises(ShipmentError, match="worker 1 has ended") as told:
            await asked
        assert (told.value.status, told.value.retry_after_s) == (503, 10)
        await until(lambda: workers.importing.status == ImportStatus(5.0, None))
        assert pid not in workers_of(os.getpid())
        assert "worker 1 has said nothing for 1 s, and was killed; it is restarted" in caplog.text

    with_workers(f"sqlite:///{tmp_path / 'x.db'}", story)


@pytest.mark.usefixtures("at_once")
def test_what_was_imported_is_known_while_another_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(workers: Workers, _: FakeClock) -> None:
        await until(lambda: workers.importing.status == ImportStatus(5.0, None))
        begun = packed(Fares(0, 0.0, importing=True, stepped_s=9.0, last_import_s=None))
        says(monkeypatch, begun, stays=True)
        while workers.importing.stepped_s != 9.0:
            assert workers.importing.runs()
            assert workers.importing.stepped_s == 7.0, "since then nothing was imported"
            assert workers.importing.status == ImportStatus(5.0, None)
            await asyncio.sleep(0.001)
        assert workers.importing.status == ImportStatus(5.0, None)

    says(monkeypatch, packed(FARES), stays=False)
    with_workers("sqlite://", story)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1",
        b"\x02\x00\x00\x00[]",
        packed(Answered(1, b"{}"))[:-1] + b"\xff" * 40,
        b"\x80\x04\x95." * 1000,
    ],
    ids=["no MessagePack", "no word", "broken off", "a length of 700 MiB"],
)
def test_one_that_talks_nonsense_is_replaced(monkeypatch: pytest.MonkeyPatch, nonsense: bytes) -> None:
    async def story(workers: Workers, clock: FakeClock) -> None:
        await until(lambda: bool(workers_of(os.getpid(), b"fromhex")))
        with suppress(ShipmentError):
            await workers.do(parcel(clock))
        says(monkeypatch, packed(FARES), stays=True)
        await until(lambda: workers.importing.status.last_import_s == 5.0)

    says(monkeypatch, nonsense, stays=False)
    with_workers("sqlite://", story)


@pytest.mark.usefixtures("at_once")
def test_without_descriptors_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def story(workers: Workers, _: FakeClock) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await until(lambda: "worker 1 cannot be started: Too many open files" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: workers.importing.status.last_import_s == 5.0)

    says(monkeypatch, packed(FARES), stays=True)
    with_workers("sqlite://", story)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser")
def test_kill_9_in_the_middle_of_many_stores_loses_nothing_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    acknowledged: dict[str, int] = {}
    statuses: list[int] = []
    stop = threading.Event()
    with running(tmp_path, url, 1) as daemon:

        def ship(name: str) -> None:
            seq = 0
            while not stop.is_set():
                seq += 1
                status = daemon.ship(record(segment=name, seq=seq))
                statuses.append(status)
                if status == 200:
                    acknowledged[name] = seq

        threads = [threading.Thread(target=ship, args=(segment(n),)) for n in range(6)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: statuses.count(200) > 12, daemon.log)
            (worker,) = workers_of(daemon)
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: 503 in statuses, daemon.log)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        daemon.stop(signal.SIGKILL)
    assert set(statuses) == {200, 503}
    stored = sequence_numbers(url)
    assert all(stored[name] >= seq for name, seq in acknowledged.items())
