"""Each line that a daemon logs reaches journald with its priority."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from slurm_gpu.daemon.log import JournalFormatter, log_to_stderr
from slurm_gpu.http.web_reader import MOST_REFUSALS, Origin, WebReader, WebRefusals
from tests.node.fakes import FakeClock


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 3)],
)
def test_each_line_carries_the_priority(level: int, priority: int) -> None:
    record = logging.LogRecord("slurm_gpu.node", level, __file__, 1, "first\n%s", ("second",), None)
    formatted = JournalFormatter("%(name)s: %(message)s").format(record)
    assert formatted.splitlines() == [f"<{priority}>slurm_gpu.node: first", f"<{priority}>second"]


def test_requests_that_a_daemon_makes_are_no_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    httpx = logging.getLogger("httpx")
    monkeypatch.setattr(httpx, "level", logging.NOTSET)
    log_to_stderr(for_people=False)
    assert not httpx.isEnabledFor(logging.INFO)
    assert httpx.isEnabledFor(logging.WARNING)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Return the standard error of a daemon."""
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.NOTSET)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.INFO)
    log_to_stderr(for_people=False)
    return written


def emit(at_s: float, text: str, lineno: int = 1, level: int = logging.WARNING) -> None:
    record = logging.LogRecord("slurm_gpu.x", level, __file__, lineno, "%s", (text,), None)
    record.created = at_s
    logging.getLogger().handle(record)


def test_alternating_senders_cannot_fill_the_log(log: io.StringIO) -> None:
    refusals = WebRefusals(WebReader(), FakeClock())
    for uid in islice(cycle(range(1000, 1000 + MOST_REFUSALS + 1)), 5000):
        refusals.refuse(uid, None, Origin("10.0.0.9", is_this_host=False))
    lines = log.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[-1].endswith("(similar lines are left out for a minute)")


def test_lines_that_were_left_out_are_counted_in_the_next_one(log: io.StringIO) -> None:
    for n in range(50):
        emit(1000.0 + n, f"{n} %s")
    emit(1060.0, "later")
    emit(1000.0, "the clock was set back")
    lines = log.getvalue().splitlines()
    assert lines[18:] == [
        "<4>slurm_gpu.x: 18 %s",
        "<4>slurm_gpu.x: 19 %s (similar lines are left out for a minute)",
        "<4>slurm_gpu.x: later (similar lines left out: 30)",
        "<4>slurm_gpu.x: the clock was set back",
    ]


def test_one_call_that_is_limited_leaves_all_others(log: io.StringIO) -> None:
    for n in range(50):
        emit(1000.0, f"flood {n}")
    emit(1000.0, "other", lineno=2)
    for n in range(150):
        emit(1000.0, f"job {n} starts", lineno=3, level=logging.INFO)
    assert len(log.getvalue().splitlines()) == 20 + 1 + 150
