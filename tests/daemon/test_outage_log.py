"""Every loop of every daemon logs an outage once when it begins, and once when it ends."""

from __future__ import annotations

import ast
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.placement.zone_wait import ZoneWait
from slurm_gpu.controller.queue.ended_runs import EndedRunsPoll
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.daemon.outage_log import AGAIN_S, OutageLog
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import CachedAnswer
from slurm_gpu.database.verdicts.watch import run_watch
from slurm_gpu.errors import DatabaseError, SlurmError
from slurm_gpu.node.shipping.post import Reply, ThreadSender
from slurm_gpu.node.worker_thread import WorkerThread
from tests.controller.fakes import at_once
from tests.controller.test_watcher import Site
from tests.database.samples import FakeClock
from tests.monitor.test_poller import Watched

ROUNDS = 40
ROOT = Path(__file__).resolve().parents[2]
log = logging.getLogger("slurm-gpu-test")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def outage(clock: FakeClock) -> OutageLog:
    return OutageLog(log, "no answer: %s", clock, over="answers again")


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    outage: OutageLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        outage.failed(DatabaseError(f"gone at {clock.now}"))
        clock.now += 60
    assert outage.lasts
    outage.worked()
    outage.worked()
    assert not outage.lasts
    first, last = caplog.messages
    assert first.startswith("no answer: gone at ")
    assert last == "answers again"


def test_another_cause_is_logged_too_and_one_of_ours_with_its_traceback_once(
    outage: OutageLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        outage.failed(DatabaseError("gone"))
        outage.failed(KeyError("x"))
        clock.now += 600
    assert caplog.messages == ["no answer: gone", "no answer: KeyError: 'x'"]
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_repeated_outages_are_logged_once_a_minute(
    outage: OutageLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(240):
        outage.failed("gone")
        outage.worked()
        clock.now += 1
    assert caplog.messages.count("answers again") == 240 / AGAIN_S
    assert len(caplog.messages) == 2 * 240 / AGAIN_S


def test_without_an_end_a_failure_is_logged_once_a_minute_with_its_number(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = OutageLog(log, "refused: %s", clock)
    for _ in range(121):
        outage.failed(ValueError("bad"))
        clock.now += 1
    assert caplog.messages == [
        "refused: ValueError: bad",
        *["refused: ValueError: bad (60 times since the last report)"] * 2,
    ]
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]


class Stop(threading.Event):
    """An event that is set after `n` rounds and calls `between` in each round."""

    def __init__(self, n: int, between: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.between = n, between

    def is_set(self) -> bool:
        return self.left <= 0

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:  # waits of no length are not rounds
            self.left -= 1
            self.between()
        return self.is_set()


class Loop:
    """One loop of a daemon, whose work raises `errors` in turn; None is a round without an error."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock, self.tmp_path = FakeClock(), tmp_path
        self.errors: Iterator[Exception | None] = iter(())

    def work(self, *_: object, **__: object) -> Any:
        if (error := next(self.errors, None)) is not None:
            raise error
        return []

    def pass_time(self) -> None:
        self.clock.now += 30

    def run(self, n: int) -> None:
        for _ in range(n):
            self.pass_time()
            self.once()

    def once(self) -> None:
        raise NotImplementedError


class Watch(Loop):
    def run(self, n: int) -> None:
        run_watch(MagicMock(scan=self.work), lambda _: None, Stop(n + 1, self.pass_time), self.clock)


class Import(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.importer = Importer(MagicMock(), MagicMock(), self.clock, "c", 60.0)
        self.importer.run_once = self.work  # type: ignore[method-assign]

    def run(self, n: int) -> None:
        self.importer.run_until(Stop(n, self.pass_time))


class QueryLoop(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.kept: CachedAnswer[Any] = CachedAnswer(self.work, self.clock, 2.0, "jobs")

    def once(self) -> None:
        self.kept._renew()


class ReadDatabase(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.watched = Watched()
        self.clock, self.poll_once = self.watched.clock, self.watched.poller._seen
        self.watched.poller._seen = self.seen  # type: ignore[method-assign]

    def seen(self) -> Any:
        self.work()
        return self.poll_once()

    def run(self, n: int) -> None:
        self.watched.poller.run(3.0, Stop(n, self.pass_time))


class Snapshots(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.site = Site(tmp_path)
        self.poll_once = self.site.watcher.poll
        self.site.watcher.poll = self.polled  # type: ignore[method-assign]

    def polled(self) -> Any:
        self.work()
        return self.poll_once()

    def pass_time(self) -> None:
        self.site.clock.advance(30)

    def once(self) -> None:
        self.site.watcher.run_once()


class AuditLoop(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.acts = AuditReporter(self.clock, self.work)

    def once(self) -> None:
        self.acts._waiting = [MagicMock()]
        self.acts._background = None
        self.clock.now += 60
        self.acts.run(QueueView())


class ReadEnded(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.ended = EndedRunsPoll(MagicMock(accounting=self.work), at_once)

    def once(self) -> None:
        self.clock.now += 3600
        self.ended.poll(int(self.clock.now) - 60, self.clock.now, MagicMock(), {"gpu_h"})


class WaitForZones(Loop):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.zones = ZoneWait(MagicMock(), tmp_path, 60.0, self.clock, MagicMock())
        self.zones.work = self.work  # type: ignore[method-assign]

    def once(self) -> None:
        self.zones.run(QueueView(answered=True))


class Post(Loop):
    def once(self) -> None:
        if not hasattr(self, "sender"):
            self.wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
            self.sender = ThreadSender(self.post, lambda: self.wakes.put(None))
        self.sender.send(b"")
        self.wakes.get(timeout=20)

    def post(self, _: bytes) -> Reply:
        self.work()
        return Reply(200)


class Task(Loop):
    def once(self) -> None:
        if not hasattr(self, "thread"):
            self.thread = WorkerThread("host")
        self.thread.start(self.work)
        assert self.thread._done.wait(20)


LOOPS = {
    Watch: DatabaseError,
    Import: DatabaseError,
    QueryLoop: SlurmError,
    ReadDatabase: DatabaseError,
    Snapshots: SlurmError,
    AuditLoop: DatabaseError,
    ReadEnded: SlurmError,
    WaitForZones: SlurmError,
    Post: OSError,
    Task: OSError,
}


# A bug in these loops ends slurm-gpuctld, and systemd restarts it.
ENDED_BY_MISTAKES = {Snapshots, AuditLoop, ReadEnded, WaitForZones}
CASES = [
    pytest.param(kind, unexpected, id=f"{kind.__name__}-{'mistake' if unexpected else 'outage'}")
    for kind in LOOPS
    for unexpected in (False, True)
    if not (unexpected and kind in ENDED_BY_MISTAKES)
]


@pytest.mark.parametrize(("kind", "unexpected"), CASES)
def test_each_loop_logs_an_outage_once_and_its_end_once(
    kind: type[Loop], unexpected: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = KeyError("x") if unexpected else LOOPS[kind]("gone at 1")
    errors = [*[None] * 3, *[error] * ROUNDS, *[None] * 3]
    loop = kind(tmp_path)
    loop.errors = iter(errors)
    loop.run(len(errors))
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1, caplog.messages
    since = caplog.records[caplog.records.index(warned[0]) + 1 :]
    assert len([record for record in since if record.levelno == logging.INFO]) == 1, caplog.messages
    assert (warned[0].exc_info is not None) == (unexpected or LOOPS[kind] is OSError)


# Log lines that are not outages of a loop: each concerns one item, or a state that has changed.
OF_ONE_ITEM = {
    "database/queries/run_detail.py::_read_event",
    "database/forecasts/predicting.py::_read",
    "database/accounting/importer.py::_store",
    "database/main.py::_make_ready_when_there",
    "database/accounting/reconcile.py::_reconcile_one",
    "database/accounting/writer.py::readable",
    "http/web_reader.py::warn_of_unknown_user",
    "controller/reporting/audit_reporter.py::_send_all",
    "controller/colocation/terminations.py::send_back",
    "controller/colocation/terminations.py::_notify",
    "controller/colocation/pair_fit.py::refresh",
    "controller/queue/job_mix.py::_read",
    "controller/notices/cancellations.py::end",
    "controller/placement/priorities.py::_read_weights",
    "controller/reservations/reconciler.py::_make",
    "controller/reservations/reconciler.py::_repel",
    "controller/watcher.py::_policy",
    "controller/placement/weights.py::stop",
    "monitor/job/drawing.py::_run",
    "monitor/signin/revoked_sessions.py::add",
    "node/gpu/reader_process.py::_restart",
    "node/allocation/hooks.py::_reject",
    "node/jobs/ended_runs.py::_of_this_boot",
    "node/jobs/inventory.py::find",
    "node/jobs/segments.py::_last_record",
    "node/main.py::main",
    "node/service.py::_make_metrics",
    "node/service.py::_rules",
    "node/shipping/journal.py::get",
    "node/shipping/journal.py::_compact",
    "node/shipping/rejected.py::keep",
    "node/shipping/spool.py::_leave_mark",
    "node/shipping/shipment_queue.py::reject",
    "node/shipping/spool.py::allocations",
    "node/shipping/spool.py::last_host",
    "node/shipping/spool.py::last_run",
    "notices/outbox.py::_sent",
}


def _logs_in_a_handler(path: Path) -> set[str]:
    """Return the functions that log a warning or an error while they handle an exception."""
    found: set[str] = set()

    def search(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.ExceptHandler) and any(map(_is_warning, ast.walk(child))):
                found.add(f"{path.relative_to(ROOT / 'slurm_gpu')}::{function}")
            search(child, name)

    search(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


def _is_warning(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and node.func.attr in ("warning", "error", "exception", "critical")
    )


@pytest.mark.parametrize("package", ["database", "controller", "monitor", "node", "notices"])
def test_caught_errors_go_to_an_outage_log_or_concern_one_item(package: str) -> None:
    paths = sorted((ROOT / "slurm_gpu" / package).rglob("*.py"))
    found = set().union(*map(_logs_in_a_handler, paths))
    assert found <= OF_ONE_ITEM, "use OutageLog to log an outage only once"
