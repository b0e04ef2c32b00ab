"""Every error in notices.yaml has a position, and nothing is sent without `mode: send`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_gpu.alerts.alert import AlertKind
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.notices.settings import Settings, check_settings, load_settings

WHOLE = """\
mode: send
alerts: [never_used, xid]
after: 45m
max_per_user_per_day: 3
exempt_users: [root]
contact: gpu-help@example.edu
mail: {host: mail.example.edu, port: 587, from: gpu@example.edu, to: "{user}@example.edu", starttls: true}
webhook: {url: "https://chat.example.edu/hooks/gpu?x=1", secret_file: /etc/slurm-gpu/webhook.secret}
templates: /etc/slurm-gpu/notices
"""


def check(text: str) -> Settings:
    return check_settings(parse_yaml(text, "notices.yaml"))


def test_all_settings_are_read() -> None:
    found = check(WHOLE)
    assert found.sends
    assert found.alerts == {AlertKind.NEVER_USED, AlertKind.XID}
    assert (found.after_s, found.max_per_user_per_day, found.exempt_users) == (2700, 3, {"root"})
    assert found.channels == ("mail", "webhook")
    assert found.mail is not None
    assert found.mail.address_of("alice") == "alice@example.edu"
    assert found.webhook is not None
    assert found.webhook.secret_file == Path("/etc/slurm-gpu/webhook.secret")


def test_text_that_resembles_a_time_is_text() -> None:
    assert check("contact: 24:00\n").contact == "24:00"


@pytest.mark.parametrize("text", ["", "mode: observe\n", "mail: {from: a@b.edu, to: '{user}@b.edu'}\n"])
def test_nothing_is_sent_without_mode_send(text: str) -> None:
    assert not check(text).sends


def test_the_example_sends_nothing_and_is_valid_with_all_its_keys() -> None:
    example = (Path(__file__).parents[2] / "etc" / "notices.yaml").read_text()
    assert check(example) == Settings()
    every = re.sub(r"^# (?=[a-z_]+: )", "", example, flags=re.MULTILINE)
    assert check(every).channels == ("mail", "webhook")


def test_without_the_file_there_are_no_settings(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "notices.yaml") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mode: on", "mode: True is not valid; allowed: observe, send"),
        ("mode: send", "notices.yaml:1:7: mode: send requires mail: or webhook:"),
        ("modes: send", "'modes' is not a setting of the file; did you mean mode?"),
        (
            "per_user_a_day: 3",
            "'per_user_a_day' is not a setting of the file; did you mean max_per_user_per_day?",
        ),
        ("alerts: [held]", "alerts: 'held' is not valid"),
        ("after: 1m", "after: '1m' must be a duration from 5m to 7d, such as 30m"),
        ("after: 30", "after: 30 must be a duration"),
        ("max_per_user_per_day: 0", "max_per_user_per_day: 0 must be a whole number from 1 to 100"),
        ("max_per_user_per_day: true", "max_per_user_per_day: True must be a whole number"),
        (
            "mail: {to: '{user}@b.edu'}",
            "mail lacks from; write an address, such as from: gpu-help@",
        ),
        ("mail: {from: a@b.edu}", "mail lacks to"),
        ("mail: {from: a@b.edu, to: x@b.edu}", "to: 'x@b.edu' must be an address with {user} in it"),
        ("mail: {from: a@b.edu, to: '{user}{user}@b.edu'}", "must be an address with {user} in it"),
        ('mail: {from: "a@b.edu\\nBcc: x@y.z", to: "{user}@b.edu"}', "must be an address"),
        ("mail: {from: 'a b@c.edu', to: '{user}@b.edu'}", "from: 'a b@c.edu' must be an address"),
        ("mail: {from: a@b.edu, to: '{user}@b.edu', port: 0}", "port: 0 must be a whole number from 1"),
        ("mail: {from: a@b.edu, to: '{user}@b.edu', host: 'a b'}", "host: 'a b' must be a mail server"),
        ("webhook: {url: 'http://chat.example.edu/x'}", "must be an address that begins with https://"),
        ("webhook: {url: 'https://a:b@chat.example.edu/x'}", "without user and password"),
        ("webhook: {url: 'https://chat.example.edu:0/x'}", "must be an address that begins with https://"),
        ("webhook: {url: 'ftp://chat.example.edu/x'}", "must be an address that begins with https://"),
        ("webhook: {url: 'https://chat.example.edu/räume'}", "in ASCII"),
        ("webhook: {secret_file: /x}", "webhook lacks url"),
        ("webhook: {url: 'https://x.edu/', secret_file: x}", "secret_file: 'x' must be an absolute path"),
        ("templates: notices", "templates: 'notices' must be an absolute path"),
        ("[]", "the file must contain `key: value` lines"),
    ],
)
def test_errors_are_reported_with_their_place(text: str, complaint: str) -> None:
    with pytest.raises(InvalidFileError) as raised:
        check(text + "\n")
    assert complaint in str(raised.value)


def test_a_webhook_of_this_host_needs_no_tls() -> None:
    assert check("webhook: {url: 'http://127.0.0.1:8080/x'}\n").channels == ("webhook",)
