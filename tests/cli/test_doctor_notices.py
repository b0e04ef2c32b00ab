"""`slurm-gpu doctor` reports what prevents slurm-gpuctld from notifying users, and sends nothing itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.daemons import notices
from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from tests.cli.installation import Installation, worst
from tests.notices.servers import MailServer, WebServer, serving
from tests.notices.test_channels import unused_port

ENDS = 'version: 1\ncancel_idle: {mode: enforce, warn: [1h, 3h], after: 4h, why: "Others wait for them."}\n'


@pytest.fixture
def mail() -> Iterator[MailServer]:
    server = MailServer()
    with serving(server):
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    with serving(server):
        yield server


def found(
    installed: Installation, text: str | None, policy: str = "version: 1\n", uid: int | None = None
) -> CheckResult:
    """Return the worst finding; `uid` is that of SlurmUser (default: of the user that runs the test)."""
    compiled = compile_policy(check_policy(parse_yaml(policy, "p")), ResolvedNames({}, {}), SiteFacts())
    (installed.root / "slurm" / "job_submit.lua").write_text(build_bundle(compiled))
    if text is not None:
        (installed.root / "notices.yaml").write_text(text)
    at = installed.at()
    changed = {"slurm_user": "slurm", "slurm_user_uid": os.geteuid() if uid is None else uid}
    at.__dict__["settings"] = dataclasses.replace(at.settings, **changed)
    return worst(notices.notices(at))


def mail_to(port: int, more: str = "mode: send\n") -> str:
    return f"{more}mail: {{from: help@b.edu, to: '{{user}}@b.edu', host: 127.0.0.1, port: {port}}}\n"


def hook(port: int, secret: Path, more: str = "mode: send\n") -> str:
    return f"{more}webhook: {{url: 'http://127.0.0.1:{port}/hook', secret_file: {secret}}}\n"


def test_a_mail_server_that_accepts_the_sender_is_ok_and_gets_no_mail(
    installed: Installation, mail: MailServer
) -> None:
    finding = found(installed, mail_to(mail.port))
    assert (finding.level, "mode send, mail" in finding.message) == (Level.OK, True)
    assert mail.got == []


def test_an_exempt_user_that_does_not_exist_is_reported(installed: Installation, mail: MailServer) -> None:
    finding = found(installed, mail_to(mail.port, "mode: send\nexempt_users: [root, no such]\n"))
    path = installed.root / "notices.yaml"
    assert finding.level is Level.WARN
    assert finding.message == f"exempt_users in {path} names users that do not exist on this host: no such"
    assert finding.remedy == "run getent passwd 'no such' to check the name, then correct it in the file"


def test_an_unreachable_mail_server_is_reported_with_its_address(installed: Installation) -> None:
    port = unused_port()
    finding = found(installed, mail_to(port))
    assert finding.level is Level.FAIL
    assert f"mail server 127.0.0.1:{port}" in finding.message
    assert f"nc -v 127.0.0.1 {port}" in (finding.remedy or "")
    assert found(installed, mail_to(port, "mode: observe\n")).level is Level.WARN, (
        "in mode observe no mail is sent"
    )


def test_a_webhook_that_answers_is_ok_and_gets_no_post(
    installed: Installation, web: WebServer, tmp_path: Path
) -> None:
    secret = tmp_path / "webhook.secret"
    secret.write_text("word\n")
    secret.chmod(0o600)
    finding = found(installed, hook(web.port, secret))
    assert (finding.level, "mode send, webhook" in finding.message) == (Level.OK, True)
    assert web.asked == []


@pytest.mark.parametrize(("mode", "why"), [(None, "No such file"), (0o644, "chmod 0600")])
def test_an_unusable_secret_is_reported(
    installed: Installation, web: WebServer, tmp_path: Path, mode: int | None, why: str
) -> None:
    secret = tmp_path / "webhook.secret"
    if mode is not None:
        secret.write_text("word\n")
        secret.chmod(mode)
    finding = found(installed, hook(web.port, secret))
    assert (finding.level, why in finding.message) == (Level.FAIL, True)
    assert f"chown slurm {secret}" in (finding.remedy or "")


def test_an_unreachable_webhook_is_reported_without_its_path(installed: Installation, tmp_path: Path) -> None:
    secret = tmp_path / "webhook.secret"
    secret.write_text("word\n")
    secret.chmod(0o600)
    finding = found(installed, hook(unused_port(), secret))
    assert (finding.level, "refused" in finding.message) == (Level.FAIL, True)
    assert "/hook" not in finding.message


def test_mistakes_are_reported_with_their_position(installed: Installation, tmp_path: Path) -> None:
    finding = found(installed, "mode: sent\n")
    assert (finding.level, "notices.yaml:1:7: mode: 'sent'" in finding.message) == (Level.FAIL, True)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "never_used.txt").write_text("Subject: $unknown\n\nHello\n")
    finding = found(installed, f"templates: {tmp_path}/texts\n")
    assert (finding.level, "never_used.txt:1:1: $unknown" in finding.message) == (Level.FAIL, True)


def test_a_file_unreadable_for_slurm_user_is_reported_with_the_chmod_command(installed: Installation) -> None:
    text = installed.root / "notices.yaml"
    text.write_text("mode: observe\n")
    text.chmod(0o600)
    finding = found(installed, None, uid=os.geteuid() + 4711)
    assert (finding.level, finding.remedy) == (Level.FAIL, f"run chmod o+r {text}")
    text.chmod(0o644)
    text.parent.chmod(0o700)
    finding = found(installed, None, uid=os.geteuid() + 4711)
    assert (finding.level, finding.remedy) == (Level.FAIL, f"run chmod o+x {text.parent}")


def test_a_rule_that_ends_jobs_without_a_channel_for_warnings_is_reported(
    installed: Installation, mail: MailServer
) -> None:
    finding = found(installed, None, ENDS)
    assert (finding.level, "ends no job" in finding.message) == (Level.WARN, True)
    finding = found(installed, mail_to(mail.port, "mode: observe\n"), ENDS)
    assert (finding.level, "mode: observe" in finding.message) == (Level.WARN, True)
    assert found(installed, mail_to(mail.port), ENDS).level is Level.OK


def test_without_notices_yaml_or_on_other_hosts_the_check_is_skipped(
    installed: Installation,
) -> None:
    assert found(installed, None).level is Level.SKIPPED
    (finding,) = notices.notices(installed.at("elsewhere"))
    assert finding.level is Level.SKIPPED
