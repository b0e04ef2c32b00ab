"""What daemons log reaches journald with its priority, each line of it."""

from __future__ import annotations

import logging

import pytest

from slurm_gpu.daemonlog import JournalFormatter, log_to_stderr


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 3)],
)
def test_each_line_carries_the_priority(level: int, priority: int) -> None:
    record = logging.LogRecord("slurm_gpu.node", level, __file__, 1, "first\n%s", ("second",), None)
    told = JournalFormatter("%(name)s: %(message)s").format(record)
    assert told.splitlines() == [f"<{priority}>slurm_gpu.node: first", f"<{priority}>second"]


def test_requests_that_a_daemon_makes_are_no_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    httpx = logging.getLogger("httpx")
    monkeypatch.setattr(httpx, "level", logging.NOTSET)
    log_to_stderr(for_people=False)
    assert not httpx.isEnabledFor(logging.INFO)
    assert httpx.isEnabledFor(logging.WARNING)
