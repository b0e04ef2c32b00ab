"""Default templates contain the next steps, templates of the site are checked, and names are harmless."""

from __future__ import annotations

import email
import email.policy
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import InvalidFileError
from slurm_gpu.notices.finding import ENDED, KINDS, WARNING
from slurm_gpu.notices.mail import compose
from slurm_gpu.notices.sending import Message
from slurm_gpu.notices.texts import PLACEHOLDERS, NoticeContext, Text, load_templates, plain, render

from .findings import NOW_S, make_finding, make_job

AROUND = NoticeContext(
    cluster="neuron",
    zone=ZoneInfo("Asia/Seoul"),
    contact="gpu-help@example.edu",
    web="https://gpu.example.edu",
)
TEMPLATES = load_templates()
HOSTILE = "x\r\nBcc: eve@example.com\r\n\r\n.\r\nQUIT ${user} $nope \x1b[2J\u202e%s {0.__class__}"


def rendered(kind: str, name: str = "train", user: str = "alice") -> Text:
    finding = make_finding(kind=kind, job=make_job(user=user, name=name), end_s=NOW_S)
    return render(TEMPLATES[kind], user, [finding], AROUND, why="Others wait.", fate="They are cancelled.")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_template_with_the_job_next_steps_and_contact(kind: str) -> None:
    text = rendered(kind)
    assert text.subject.startswith("[neuron] 1 job")
    assert "  17  train: 2 GPUs, since 2026-11-21 20:00 KST" in text.body
    assert "slurm-gpu job 17" in text.body or "slurm-gpu diagnose 17" in text.body
    assert "Questions: gpu-help@example.edu" in text.body
    assert "https://gpu.example.edu" in text.body
    assert "$" not in text.body
    assert all(len(line) <= 110 for line in text.body.splitlines())


@pytest.mark.parametrize("kind", [WARNING, ENDED])
def test_texts_about_an_end_contain_fate_and_reason(kind: str) -> None:
    assert "They are cancelled.\nReason: Others wait." in rendered(kind).body


def test_many_jobs_are_one_message() -> None:
    findings = [make_finding(number) for number in range(100, 150)]
    text = render(TEMPLATES["never_used"], "alice", findings, AROUND)
    assert "50 jobs" in text.subject
    assert "and 30 others" in text.body
    assert len(text.body.splitlines()) < 50


@given(name=st.text() | st.just(HOSTILE), user=st.text(min_size=1) | st.just(HOSTILE))
def test_a_name_stays_on_one_line_and_adds_no_header(name: str, user: str) -> None:
    text = rendered("never_used", name, user)
    assert len(text.body.splitlines()) == len(rendered("never_used").body.splitlines())
    assert text.subject.isprintable()
    message = Message(
        id="a" * 32, at_s=NOW_S, cluster="neuron", user="alice", kind="never_used", jobs=("17",), text=text
    )
    octets = compose(message, "gpu-help@example.edu", "alice@example.edu").as_bytes(policy=email.policy.SMTP)
    mail = email.message_from_bytes(octets, policy=email.policy.SMTP)
    assert mail.get_all("Bcc") is None
    assert mail.get_all("To") == ["alice@example.edu"]
    assert len(mail.get_all("Subject") or []) == 1
    assert octets.isascii()


@given(st.text())
def test_plain_text_has_no_control_characters(text: str) -> None:
    found = plain(text, 40)
    assert len(found) <= 40
    assert found.isprintable()
    assert plain(found, 40) == found


def test_placeholders_in_a_name_are_not_replaced() -> None:
    assert "$user ${contact}" in rendered("never_used", name="$user ${contact}").body


def write(directory: Path, kind: str, text: str) -> Path:
    (directory / f"{kind}.txt").write_text(text)
    return directory


def test_a_site_template_replaces_ours(tmp_path: Path) -> None:
    own = load_templates(write(tmp_path, "xid", "Subject: $cluster: $count\n\nFor $$5: $jobs\n"))
    text = render(own["xid"], "alice", [make_finding(kind="xid")], AROUND)
    assert text.subject == "neuron: 1 job"
    assert text.body.startswith("For $5:   17  train")
    assert own["never_used"].body.template == TEMPLATES["never_used"].body.template


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "xid.txt:1:1: the first line must be `Subject: …`"),
        ("Hello\n", "xid.txt:1:1: the first line must be `Subject: …`"),
        ("Subject: \n\nx\n", "xid.txt:1:1: the first line must be"),
        ("Subject: x\n\n", "xid.txt:2:1: there is no message after the subject"),
        ("Subject: x\n\nyour $job5\n", "xid.txt:3:1: $job5 is not a placeholder; available: $user, $cluster"),
        ("Subject: x\n\nit costs $ 5\n", "xid.txt:3:1: a $ without a placeholder; write $$"),
        ("Subject: x\n\n" + "x" * 70_000, "has 70012 bytes; the limit is 65536"),
    ],
)
def test_errors_in_a_template_are_reported_with_their_place(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InvalidFileError) as raised:
        load_templates(write(tmp_path, "xid", text))
    assert complaint in str(raised.value)


def test_a_template_of_no_kind_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"held-idle\.txt: is not named after a kind of notice"):
        load_templates(write(tmp_path, "held-idle", "Subject: x\n\ny\n"))
    with pytest.raises(InvalidFileError, match="is not a directory"):
        load_templates(tmp_path / "none")


def test_every_placeholder_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notices.md").read_text()
    assert [name for name in PLACEHOLDERS if f"`${name}`" not in page] == []
