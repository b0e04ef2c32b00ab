"""A reader that exits repeatedly is reported with its cause, once an hour."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu import reader_child as readerchild
from slurm_gpu.node.gpu.reader_exits import AGAIN_S, MANY, RECENT_S, WITHIN_S, ReaderExits, RepeatedExits
from slurm_gpu.node.gpu.reader_process import ReaderProcess
from tests.node.fakes import FakeClock, FakeGpu
from tests.node.machine import Machine

RAISES = """import json
print(json.dumps([["cause", "UnicodeDecodeError: invalid start byte"]]), flush=True)
raise SystemExit(1)"""


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (("sh", "-c", "exit 3"), "(exit status 3)"),
        (("sh", "-c", "kill -SEGV $$"), "(SIGSEGV)"),
        ((sys.executable, "-c", RAISES), "(UnicodeDecodeError: invalid start byte)"),
    ],
)
def test_three_exits_in_a_minute_are_reported_with_their_cause(
    start: Callable[..., ReaderProcess],
    monkeypatch: pytest.MonkeyPatch,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    command: tuple[str, ...],
    cause: str,
) -> None:
    monkeypatch.setattr(readerchild, "COMMAND", command)
    reader = start()
    for n in range(MANY):
        assert reader.exits.take() is None
        with pytest.raises(NvmlError, match="the NVML reader has ended"):
            reader.devices()
        assert reader.exits.total == n + 1
        clock.advance(10)
    report = reader.exits.take()
    assert report is not None
    assert (report.exits, report.why.endswith(cause)) == (MANY, True), report
    assert reader.exits.take() is None
    errors = [item.getMessage() for item in caplog.records if item.levelno == logging.ERROR]
    assert errors == [f"NVML: 3 readers exited within 60 s, the last one: {report.why}"]


def reported(exits: ReaderExits, n: int, every_s: float, clock: FakeClock) -> list[RepeatedExits]:
    """Return the reports of `n` exits at intervals of `every_s`."""
    found = []
    for _ in range(n):
        exits.add("why")
        if (report := exits.take()) is not None:
            found.append(report)
        clock.advance(every_s)
    return found


def test_infrequent_exits_are_not_reported(clock: FakeClock) -> None:
    assert reported(ReaderExits(clock), 20, WITHIN_S / 2 + 1, clock) == []


def test_frequent_exits_are_reported_hourly_and_recent_for_ten_minutes(clock: FakeClock) -> None:
    exits = ReaderExits(clock)
    n = int(AGAIN_S / 5)
    assert len(reported(exits, n, 5.0, clock)) == 1
    assert len(reported(exits, n, 5.0, clock)) == 1
    assert (exits.total, exits.recent) == (2 * n, RECENT_S / 5)
    clock.advance(RECENT_S)
    assert (exits.total, exits.recent) == (2 * n, 0)


def test_the_daemon_records_an_event_for_repeated_exits(tmp_path: Path) -> None:
    machine = Machine(tmp_path, FakeGpu(FakeClock()))
    machine.start()
    assert machine.node is not None
    machine.node.report_reader_failing(RepeatedExits(3, "the NVML reader has ended (SIGSEGV)"))
    machine.run(1)
    assert machine.events() == ["reader_failing"]
    assert machine.event_data() == [{"deaths": 3, "why": "the NVML reader has ended (SIGSEGV)"}]
