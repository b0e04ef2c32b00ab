"""Notices are sent at most once, even if slurm-gpuctld is killed; only certain failures are retried."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import OutsideError
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.finding import NoticedRun
from slurm_gpu.notices.ledger import Delivery, DeliveryState, End, EndState, Ledger, Notice
from slurm_gpu.notices.outbox import AGAIN_AFTER_S, due, send_all
from slurm_gpu.notices.sending import Message, NotSentError, UnknownFateError
from slurm_gpu.notices.texts import Text

from .findings import NOW_S
from .servers import MailServer, serving


class Answers:
    """A channel with scripted results; None accepts the message."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.sent: list[str] = []

    def send(self, message: Message) -> None:
        self.sent.append(message.id)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


def make_notice(name: str = "a" * 32, *channels: str) -> Notice:
    return Notice(
        id=name,
        user="alice",
        kind="never_used",
        stage=0,
        runs={NoticedRun(17, 1): NOW_S},
        created_s=NOW_S,
        deliveries={channel: Delivery() for channel in channels or ("mail",)},
    )


def make_message(name: str = "a" * 32) -> Message:
    text = Text("subject", "body\n")
    return Message(
        id=name, at_s=NOW_S, cluster="neuron", user="alice", kind="never_used", jobs=("17",), text=text
    )


def send(ledger: Ledger, channel: Answers, now_s: float, messages: Sequence[str] = ("a" * 32,)) -> None:
    chosen = due(ledger, now_s)
    known = {name: make_message(name) for name in messages}
    send_all(chosen, known, {"mail": channel}, lambda: None, lambda: now_s)


def test_a_certain_failure_is_retried_at_growing_intervals_and_then_dropped() -> None:
    ledger, channel = Ledger([make_notice()]), Answers(*[NotSentError("no route")] * 99)
    now_s, attempts = NOW_S, []
    while now_s < NOW_S + 86400:
        before = len(channel.sent)
        send(ledger, channel, now_s)
        if len(channel.sent) > before:
            attempts.append(now_s - NOW_S)
        now_s += 30
    assert attempts == [sum(AGAIN_AFTER_S[:number]) for number in range(len(AGAIN_AFTER_S) + 1)]
    (delivery,) = ledger.notices[0].deliveries.values()
    assert (delivery.state, delivery.why) == (DeliveryState.FAILED, "no route")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (None, DeliveryState.SENT),
        (NotSentError("550 no such user", for_good=True), DeliveryState.FAILED),
        (UnknownFateError("no answer"), DeliveryState.UNKNOWN),
        (ValueError("a header of two lines"), DeliveryState.FAILED),
    ],
)
def test_all_other_results_are_final(answer: Exception | None, state: DeliveryState) -> None:
    ledger, channel = Ledger([make_notice()]), Answers(answer)
    for hours in range(5):
        send(ledger, channel, NOW_S + 3600 * hours)
    assert len(channel.sent) == 1
    assert ledger.notices[0].deliveries["mail"].state is state


def test_a_notice_whose_alert_ended_is_not_sent() -> None:
    ledger, channel = Ledger([make_notice()]), Answers()
    send(ledger, channel, NOW_S, messages=())
    assert channel.sent == []
    assert ledger.notices[0].is_void


def test_nothing_is_sent_if_the_ledger_cannot_be_written() -> None:
    def full() -> None:
        raise OutsideError("the disk is full")

    ledger, channel = Ledger([make_notice()]), Answers()
    with pytest.raises(OutsideError):
        send_all(due(ledger, NOW_S), {"a" * 32: make_message()}, {"mail": channel}, full, lambda: NOW_S)
    assert channel.sent == []
    assert ledger.notices[0].deliveries["mail"].state is DeliveryState.WAITING


def test_an_attempt_that_could_not_be_recorded_is_made_once_it_can() -> None:
    def full() -> None:
        raise OutsideError("the disk is full")

    ledger, channel = Ledger([make_notice()]), Answers()
    for attempt in range(10):
        chosen = due(ledger, NOW_S + 15 * attempt)
        with pytest.raises(OutsideError):
            send_all(chosen, {"a" * 32: make_message()}, {"mail": channel}, full, lambda: NOW_S)
    send(ledger, channel, NOW_S + 150)
    assert len(channel.sent) == 1
    assert ledger.notices[0].deliveries["mail"].attempts == 1


def test_a_notice_that_cannot_be_sent_delays_no_other() -> None:
    names = ["a" * 32, "b" * 32]
    ledger, channel = Ledger([make_notice(name) for name in names]), Answers(NotSentError("x"), None)
    send(ledger, channel, NOW_S, messages=names)
    assert channel.sent == names


_CHILD = """
import os, signal, sys
from pathlib import Path
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.mail import MailChannel
from slurm_gpu.notices.outbox import due, send_all
from slurm_gpu.notices.settings import Mail
from tests.notices.test_outbox import NOW_S, make_message

path, port, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ledger = ledgers.read(path)
ledgers.after_a_kill(ledger)
mail = MailChannel(Mail(sender="a@b.edu", to="{user}@b.edu", host="127.0.0.1", port=port))

class Channel:
    def send(self, message):
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        mail.send(message)
        if moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

def save():
    ledgers.write(path, ledger, 0)

save()
send_all(due(ledger, NOW_S), {"a" * 32: make_message()}, {"mail": Channel()}, save, lambda: NOW_S)
"""


@pytest.mark.parametrize(("moment", "arrived"), [("before", 0), ("after", 1)])
def test_after_a_kill_during_sending_a_notice_is_not_sent_again(
    tmp_path: Path, moment: str, arrived: int
) -> None:
    path = tmp_path / "slurm-gpu" / "notices.json"
    ledgers.write(path, Ledger([make_notice()]), os.getuid())
    server = MailServer()
    with serving(server):
        argv = [sys.executable, "-c", _CHILD, str(path), str(server.port)]
        root = Path(__file__).parents[2]
        assert subprocess.run([*argv, moment], cwd=root, check=False).returncode == -9
        for _ in range(2):
            subprocess.run([*argv, "never"], cwd=root, check=True)
    assert len(server.got) == arrived
    (delivery,) = ledgers.read(path).notices[0].deliveries.values()
    assert (delivery.state, delivery.why) == (DeliveryState.UNKNOWN, "slurm-gpuctld ended while sending it")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


TIMES = st.floats(0, 2e9)
RUNS = st.builds(NoticedRun, st.integers(1, 99), st.integers(1, 2**31))
DELIVERIES = st.builds(
    Delivery, state=st.sampled_from(DeliveryState), attempts=st.integers(0, 9), at_s=TIMES, why=st.text()
)
NOTICES = st.builds(
    Notice,
    id=st.text(),
    user=st.text(),
    kind=st.text(),
    stage=st.integers(0, 4),
    runs=st.dictionaries(RUNS, TIMES),
    created_s=TIMES,
    deliveries=st.dictionaries(st.text(), DELIVERIES),
    audited=st.booleans(),
)
ENDS = st.builds(
    End,
    run=RUNS,
    id=st.text(),
    user=st.text(),
    name=st.text(),
    n_gpus=st.floats(0, 9),
    at_s=TIMES,
    how=st.text(),
    since_s=TIMES,
    state=st.sampled_from(EndState),
    audited=st.booleans(),
    why=st.text(),
)


@given(ledger=st.builds(Ledger, st.lists(NOTICES, max_size=3), st.lists(ENDS, max_size=3)))
def test_a_written_ledger_is_read_unchanged(ledger: Ledger) -> None:
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger


def test_a_ledger_of_the_previous_release_is_read_with_the_new_kinds() -> None:
    ledger = Ledger([make_notice()])
    plain = ledger.to_json()
    plain["notices"][0]["kind"] = "held_idle"
    assert Ledger.from_json(plain) == ledger


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "notices": [{}], "ended": []}']
)
def test_a_damaged_ledger_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "notices.json").write_text(text)
    with pytest.raises(OutsideError, match="no notices are sent and no jobs are ended"):
        ledgers.read(tmp_path / "notices.json")


def test_entries_of_running_jobs_are_kept_and_others_for_a_week() -> None:
    ledger = Ledger([make_notice()])
    ledger.prune({NoticedRun(17, 1)}, NOW_S + 30 * 86400)
    assert len(ledger.notices) == 1
    ledger.prune(set(), NOW_S + 6 * 86400)
    assert len(ledger.notices) == 1
    ledger.prune(set(), NOW_S + 8 * 86400)
    assert ledger.notices == []
