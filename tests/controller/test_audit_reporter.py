"""Audit events reach slurm-gpudbd after any outage and any end of slurm-gpuctld."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.reporting import audit_reporter as module
from slurm_gpu.controller.reporting.audit_reporter import FILE_NAME, AuditReporter
from slurm_gpu.database.api.controller_body import parse_report
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import AuditEvent
from tests.controller.fakes import Clock


class Listener:
    """A slurm-gpudbd that stores repeated events once."""

    def __init__(self) -> None:
        self.received: dict[str, AuditEvent] = {}
        self.is_down = False

    def __call__(self, acts: list[AuditEvent]) -> None:
        if self.is_down:
            raise DatabaseError("no answer")
        assert len(acts) <= 100
        said = [
            {name: value for name, value in to_json(act).items() if name != "reported_by"} for act in acts
        ]
        parse_report(json.dumps({"audit": said}).encode())
        for act in acts:
            self.received.setdefault(act.id, act)

    @property
    def subjects(self) -> list[str]:
        return [act.subject for act in self.received.values()]


@pytest.fixture
def listener() -> Listener:
    return Listener()


def add(acts: AuditReporter, *subjects: str) -> None:
    for subject in subjects:
        acts.add("done", subject, "why not", "1", "2", {"n": [None, 0, "ü"]})


def test_unsent_events_are_sent_by_the_next_process(tmp_path: Path, listener: Listener) -> None:
    listener.is_down = True
    killed = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(killed, "a", "b")
    with pytest.raises(DatabaseError):
        killed.work(QueueView())
    listener.is_down = False
    following = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(following, "c")
    following.close()
    assert listener.subjects == ["a", "b", "c"]
    assert listener.received[next(iter(listener.received))].evidence == {"n": [None, 0, "ü"]}
    last = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    last.close()
    assert len(listener.received) == 3


def test_many_events_are_sent_in_batches(tmp_path: Path, listener: Listener) -> None:
    acts = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(acts, *(str(n) for n in range(250)))
    acts.close()
    assert listener.subjects == [str(n) for n in range(250)]


def test_dropped_events_are_logged(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_KEPT", 2)
    acts = AuditReporter(Clock(), listener)
    add(acts, "a", "b", "c")
    assert "audit event dropped because too many are unsent: done: a" in caplog.text
    acts.close()
    assert listener.subjects == ["b", "c"]


@pytest.mark.parametrize("left", ["", "{", "{}", "[1]", '[{"id": 3}]', '["x"]', "[" * 10**5, "\0"])
def test_a_damaged_file_ends_nothing(tmp_path: Path, listener: Listener, left: str) -> None:
    (tmp_path / FILE_NAME).write_text(left)
    acts = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(acts, "a")
    acts.close()
    assert listener.subjects == ["a"]


def test_a_directory_that_cannot_be_written_costs_no_act(
    tmp_path: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    acts = AuditReporter(Clock(), listener, tmp_path / "missing" / FILE_NAME)
    add(acts, "a")
    acts.close()
    assert listener.subjects == ["a"]
    assert "are lost if slurm-gpuctld is killed" in caplog.text


def test_an_event_that_slurm_gpudbd_does_not_accept_is_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    clock, reported = Clock(), list[AuditEvent]()
    down = True

    def send(acts: list[AuditEvent]) -> None:
        if down:
            raise DatabaseError("no answer")
        reported.extend(acts)

    acts = AuditReporter(clock, send)
    acts.add("done", "n1", "because", "1", "2")
    acts.close()
    acts.close()
    assert caplog.text.count("audit events are not sent to slurm-gpudbd: no answer") == 1
    assert "1 audit events were not sent to slurm-gpudbd" in caplog.text
    down = False
    acts.close()
    assert [act.subject for act in reported] == ["n1"]


def test_an_event_of_any_length_blocks_no_other(listener: Listener) -> None:
    acts = AuditReporter(Clock(), listener)
    nodes = ",".join(f"n{number}" for number in range(0, 9000, 2))
    acts.add("reservation made", "/a" * 400, "w" * 20_000, "none", nodes)
    add(acts, "b")
    acts.close()
    first, second = listener.received.values()
    assert (first.action, first.subject[:4], second.subject) == ("reservation made", "/a/a", "b")
    assert first.new is not None
    assert first.new.endswith("…")


def test_a_refused_event_blocks_no_other(
    tmp_path: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.is_down = True
    killed = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(killed, "a", "b")
    left = json.loads((tmp_path / FILE_NAME).read_text())
    left[0]["id"] = "a changed id"
    (tmp_path / FILE_NAME).write_text(json.dumps(left))
    listener.is_down = False
    following = AuditReporter(Clock(), listener, tmp_path / FILE_NAME)
    add(following, "c")
    following.close()
    assert listener.subjects == ["b", "c"]
    assert "slurm-gpudbd rejected an audit event: done: a: id 'a changed id'" in caplog.text
