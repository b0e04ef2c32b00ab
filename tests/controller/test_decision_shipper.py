"""Decisions reach slurm-gpudbd once each, despite outages, rotations of the log and kills."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.duty import Background, QueueView
from slurm_gpu.controller.reporting import decision_shipper as decisionship
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.reporting.decision_log import MARK_FILE, LogLine
from slurm_gpu.controller.reporting.decision_shipper import DecisionShipper, decision_of
from slurm_gpu.database.api.controller_body import MOST_DECISIONS, parse_report
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import AuditEvent, Decision
from slurm_gpu.wire.headers import MAX_BODY_BYTES
from tests.controller.fakes import Clock

LINE = "slurm-gpu/1 {at} submit allow t{at} uid=1001 account=nlp rules=- mgpu=1000 zone=observe:-:room\n"


class Site:
    """A decisions.log and its shipper."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.log = directory / "decisions.log"
        self.kept: dict[str, Decision] = {}
        self.sent = 0
        self.reported: list[AuditEvent] = []
        self.is_down = False
        self.lines = 0
        self.start()

    def start(self) -> None:
        """Start another slurm-gpuctld with only the data on disk."""
        self.acts = AuditReporter(self.clock, self.reported.extend)
        self.shipper = self.shipper_of()

    def shipper_of(self, background: Background | None = None) -> DecisionShipper:
        return DecisionShipper(self.directory, self.clock, self.acts, self.send, background)

    def ship(self) -> None:
        """Ship all decisions when shipping is due."""
        self.clock.advance(60)
        self.shipper.run(QueueView())

    def send(self, decisions: Sequence[Decision], after: str | None) -> bool:
        if self.is_down:
            raise DatabaseError("no answer")
        lacks = after is not None and after not in self.kept
        assert len(decisions) <= MOST_DECISIONS
        self.sent += len(decisions)
        for decision in decisions:
            self.kept.setdefault(decision.id, decision)
        return lacks

    def decide(self, count: int = 1) -> None:
        with self.log.open("a") as file:
            for _ in range(count):
                self.lines += 1
                file.write(LINE.format(at=self.lines))

    def move(self) -> None:
        if self.log.exists():
            self.log.rename(self.directory / "decisions.log.1")
        self.log.touch()

    @property
    def seconds(self) -> list[int]:
        return sorted(decision.at_s for decision in self.kept.values())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_line_contains_the_whole_decision(site: Site):
    site.log.write_text(
        "slurm-gpu/1 7 modify deny - uid=1001 account=n%6Cp qos=x tasks=1 rules=share:gpus%3Aa100:enforce\n"
    )
    site.ship()
    (decision,) = site.kept.values()
    assert (decision.at_s, decision.operation, decision.verdict, decision.token) == (
        7,
        "modify",
        "deny",
        None,
    )
    assert (decision.uid, decision.rules, decision.scores) == (1001, "share:gpus:a100:enforce", None)
    assert decision.job == {"account": "nlp", "qos": "x", "tasks": "1"}


def test_decisions_during_an_outage_are_shipped_later(site: Site):
    site.is_down = True
    site.decide(3)
    site.ship()
    site.move()
    site.decide(2)
    site.ship()
    site.start()
    site.is_down = False
    site.ship()
    assert site.seconds == [1, 2, 3, 4, 5]
    site.ship()
    assert site.sent == 5, "nothing is shipped again"


@pytest.mark.parametrize("restarts", [False, True])
def test_lost_decisions_are_shipped_again_with_the_next_one(site: Site, restarts: bool):
    site.decide(3)
    site.ship()
    site.move()
    site.decide(2)
    site.ship()
    site.kept.clear()
    if restarts:
        site.start()
    site.ship()
    assert site.seconds == [], "nothing is new"
    site.decide()
    site.ship()
    assert site.seconds == [1, 2, 3, 4, 5, 6]
    sent = site.sent
    site.decide()
    site.ship()
    assert site.sent == sent + 1


def test_a_mark_of_an_earlier_release_is_read_on_from(site: Site):
    site.decide(3)
    site.ship()
    mark = json.loads((site.directory / MARK_FILE).read_text())
    del mark["last"]
    (site.directory / MARK_FILE).write_text(json.dumps(mark))
    site.start()
    site.decide()
    site.ship()
    assert site.sent == 4


def test_two_equal_lines_are_two_decisions(site: Site):
    site.log.write_text(LINE.format(at=1) * 2)
    site.ship()
    assert site.seconds == [1, 1]


def test_half_a_line_waits_until_it_is_whole(site: Site):
    whole = LINE.format(at=1)
    site.log.write_text(whole + whole[:40])
    site.ship()
    assert site.sent == 1
    site.log.write_text(whole * 2)
    site.ship()
    assert (site.sent, site.seconds) == (2, [1, 1])


def test_a_log_rotated_twice_is_reported(site: Site, caplog: pytest.LogCaptureFixture):
    site.decide()
    site.ship()
    for _ in range(2):
        site.move()
        site.decide()
        site.move()
        site.decide()
    site.ship()
    site.acts.close()
    assert site.seconds == [1, 4, 5]
    assert [act.action for act in site.reported] == ["decisions lost"]
    site.ship()
    site.acts.close()
    assert len(site.reported) == 1


def test_invalid_lines_are_skipped(site: Site, caplog: pytest.LogCaptureFixture):
    site.log.write_bytes(b"what\n\xff\xfe\n" + b"x" * 2**20 + b"\n" + LINE.format(at=9).encode())
    site.ship()
    assert site.seconds == [9]
    assert "that are not decisions" in caplog.text


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"device": 1}', '{"device": 1, "inode": -2, "offset": "x"}', "[" * 10**5]
)
def test_a_damaged_mark_costs_nothing_but_shipping_again(site: Site, damage: str):
    site.decide(2)
    site.ship()
    (site.directory / MARK_FILE).write_text(damage)
    site.start()
    site.ship()
    assert (site.sent, site.seconds) == (4, [1, 2])


def test_repeated_refusals_do_not_fill_the_database(site: Site, caplog: pytest.LogCaptureFixture):
    most = decisionship.REFUSALS_OF_A_USER
    at_s = 7 * 3600

    def refuse(uid: int, at_s: int, count: int) -> None:
        with site.log.open("a") as file:
            for _ in range(count):
                file.write(
                    f"slurm-gpu/1 {at_s} submit deny - uid={uid} account=nlp rules=share:jobs:enforce\n"
                )

    refuse(1001, at_s, most + 500)
    refuse(1002, at_s, 3)
    site.is_down = True
    site.ship()  # retries are not counted twice
    site.is_down = False
    site.ship()
    refuse(1001, at_s + 60, 100)
    refuse(1001, at_s + 3600, 2)
    site.decide()
    site.ship()
    kept = Counter((one.verdict, one.uid, one.at_s // 3600) for one in site.kept.values())
    assert kept == {
        ("deny", 1001, 7): most,
        ("deny", 1002, 7): 3,
        ("deny", 1001, 8): 2,
        ("allow", 1001, 0): 1,
    }
    assert caplog.text.count("uid 1001 was rejected more than 1000 times within an hour") == 1


def test_an_outage_is_logged_once_and_so_is_its_end(site: Site, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    site.is_down = True
    site.decide()
    for _ in range(3):
        site.ship()
    site.is_down = False
    site.ship()
    assert caplog.text.count("remain in") == 1
    assert caplog.text.count("has all decisions again") == 1


def test_the_watcher_never_waits_for_it(site: Site):
    tasks: list[Callable[[], None]] = []
    done: list[Future[None]] = []

    def background(task: Callable[[], None]) -> Future[None]:
        tasks.append(task)
        done.append(Future())
        return done[-1]

    shipper = site.shipper_of(background)
    site.decide()
    shipper.run(QueueView())
    assert site.seconds == []
    site.clock.advance(decisionship.EVERY_S)
    shipper.run(QueueView())
    assert len(tasks) == 1, "not while a task is running"
    tasks[0]()
    done[0].set_result(None)
    assert site.seconds == [1]
    site.decide()
    shipper.run(QueueView())
    assert len(tasks) == 2
    tasks[1]()
    done[1].set_result(None)
    shipper.run(QueueView())
    assert len(tasks) == 2, "not before it is due"
    assert site.seconds == [1, 2]


@given(
    st.lists(
        st.sampled_from(["decide", "many", "move", "down", "back", "ship", "restart", "killed"]), max_size=25
    )
)
def test_each_decision_is_stored_once_or_its_loss_is_reported(
    tmp_path_factory: pytest.TempPathFactory, story: list[str]
):
    site = Site(tmp_path_factory.mktemp("run"))
    was_seen = True
    for step in story:
        if step in ("decide", "many"):
            site.decide(1 if step == "decide" else 700)
        elif step == "move":
            was_seen = was_seen and (site.directory / MARK_FILE).exists()
            site.move()
        elif step in ("down", "back"):
            site.is_down = step == "down"
        elif step == "ship":
            site.ship()
        else:
            if (
                step == "killed" and not site.is_down
            ):  # after the database has the decisions, before the mark is written
                piece = site.shipper._log.next(4096, 10)
                if piece is not None:
                    site.send(list(site.shipper._decisions(piece.lines, Counter())), None)
            site.acts.close()
            site.start()
    site.is_down = False
    site.ship()
    site.acts.close()
    assert len(site.seconds) == len(set(site.seconds))
    if site.seconds != list(range(1, site.lines + 1)):
        assert story.count("move") > 1
        assert not was_seen or "decisions lost" in {act.action for act in site.reported}


@given(st.text(max_size=5000), st.integers(0, 2**70), st.text(max_size=80))
def test_any_request_fits_the_limits_of_the_database(text: str, uid: int, token: str):
    line = (
        f"slurm-gpu/1 5 submit allow {quote(token) or '-'} uid={uid} partition={quote(text)} "
        f"rules={quote(text)}"
    )
    decision = decision_of(LogLine(1, 0, line.encode()))
    if decision is not None:
        body = json.dumps({"decisions": [to_json(decision)]}).encode()
        assert len(body) <= MAX_BODY_BYTES
        (reported,) = parse_report(body).decisions or ()
        assert reported.uid == uid


WORD = st.one_of(
    st.text(max_size=9),
    st.sampled_from(["=", "=x", "k" * 300 + "=1", "uid=7", "tasks=٣", "rules=%00%FF", "slurm-gpu/1"]),
    st.integers(0, 50).map(lambda number: f"{chr(97 + number % 26) * (1 + number // 26)}=1"),
)
LINES = st.builds(
    lambda at, words: f"slurm-gpu/1 {at} submit allow T uid=5 {' '.join(words)}",
    st.one_of(st.integers(0, 2**70).map(str), st.sampled_from(["9" * 5000, "٣", "-1", "1e9"])),
    st.lists(WORD, max_size=60),
)


@given(st.one_of(st.binary(max_size=300), LINES.map(lambda text: text.encode("utf-8", "replace"))))
def test_no_line_however_damaged_is_shipped_as_what_the_database_never_takes(line: bytes):
    """Otherwise, all later decisions would wait indefinitely."""
    decision = decision_of(LogLine(1, 0, line))
    if decision is not None:
        parse_report(json.dumps({"decisions": [to_json(decision)]}).encode())


def test_a_line_that_was_cut_off_is_not_taken_for_the_one_that_it_runs_into():
    first = LINE.format(at=1).encode()
    second = LINE.format(at=2).replace("1001", "1002").encode()
    for cut in range(1, len(first) - 1):
        decision = decision_of(LogLine(1, 0, first[:cut] + second.rstrip()))
        assert decision is None, first[:cut]


def test_the_most_that_is_shipped_at_once_is_not_too_much():
    short = LogLine(
        1, 10**9, b"slurm-gpu/1 1795262400 submit allow abcdefghx1 uid=60901 account=nlp qos=normal rules=-"
    )
    decision = decision_of(short)
    assert decision is not None
    body = {"decisions": [to_json(decision)] * decisionship._AT_ONCE}
    assert len(json.dumps(body)) + decisionship._AT_ONCE_BYTES < MAX_BODY_BYTES
    assert decisionship._AT_ONCE <= MOST_DECISIONS
