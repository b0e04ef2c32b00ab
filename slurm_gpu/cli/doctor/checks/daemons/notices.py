"""Check that slurm-gpuctld can send notices, without sending any."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.files.access import denies
from slurm_gpu.cli.doctor.checks.finding import (
    CheckResult,
    DoctorContext,
    fail,
    ok,
    skipped,
    unreadable,
    warn,
)
from slurm_gpu.errors import InputError
from slurm_gpu.notices.sending import NotSentError
from slurm_gpu.notices.settings import FILE_NAME, Settings, load_settings
from slurm_gpu.notices.texts import load_templates
from slurm_gpu.policy.language.model import Mode
from slurm_gpu.policy.language.names import SystemDirectory
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.text.units import few

_FIX = (
    "fix the file, which slurm-gpuctld then reads automatically; until it is fixed, no user is notified "
    "and no "
    "job is ended"
)


def notices(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that notices.yaml is valid, and that its mail server and webhook answer."""
    if not at.is_controller:
        yield skipped("notices are sent from hosts of slurmctld, and this host is not one")
        return
    path = at.site.config_path.absolute().parent / FILE_NAME
    try:
        settings = load_settings(path)
    except InputError as error:
        yield unreadable(error) or fail(str(error), _FIX)
        return
    ends = _ends_jobs(at)
    if settings is None:
        if ends:
            yield _ends_no_job(f"{path} does not exist")
        else:
            yield skipped(f"{path} does not exist: no notices are sent")
        return
    found = [*_readable(at, path), *_texts(at, settings), *_channels(at, settings)]
    found += _exempt(path, settings)
    if ends and not settings.sends:
        found.append(_ends_no_job(f"{path} has mode: {settings.mode}"))
    yield from found
    if not found:
        channels = " and ".join(settings.channels) or "no mail: or webhook: set"
        yield ok(f"{path}: mode {settings.mode}, {channels}")


def _ends_jobs(at: DoctorContext) -> bool:
    policy = read_policy_in_force(Path(at.settings.conf_path).parent / SCRIPT_NAME)
    rule = None if policy is None else policy.cancel_idle
    return rule is not None and rule.mode == Mode.ENFORCE


def _ends_no_job(why: str) -> CheckResult:
    return warn(
        f"{why}: no user is warned, so cancel_idle in the active policy ends no job",
        f"set mode: send, and mail: or webhook:, in {FILE_NAME}, as described in docs/notices.md",
    )


def _texts(at: DoctorContext, settings: Settings) -> Iterator[CheckResult]:
    try:
        load_templates(settings.templates)
    except InputError as error:
        yield unreadable(error) or fail(str(error), _FIX)
        return
    if settings.templates is not None:
        for path in (settings.templates, *sorted(settings.templates.glob("*.txt"))):
            yield from _readable(at, path)


def _exempt(path: Path, settings: Settings) -> Iterator[CheckResult]:
    directory = SystemDirectory()
    if unknown := sorted(user for user in settings.exempt_users if directory.uid(user) is None):
        yield warn(
            f"exempt_users in {path} names users that do not exist on this host: {few(unknown, 5)}",
            f"run getent passwd {shlex.quote(unknown[0])} to check the name, then correct it in the file",
        )


def _channels(at: DoctorContext, settings: Settings) -> Iterator[CheckResult]:
    # Imported here: the modules for SMTP and TLS load slowly, and every other check would wait for them.
    from slurm_gpu.notices.mail import MailChannel
    from slurm_gpu.notices.webhook import WebhookChannel, read_secret

    if settings.mail is not None:
        where = f"{settings.mail.host} {settings.mail.port}"
        yield from _tried(
            MailChannel(settings.mail).try_out,
            f"run nc -v {where} to see whether a mail server listens there; start one, or configure another "
            f"under mail: in {FILE_NAME}",
            settings,
        )
    if settings.webhook is None:
        return
    if (secret := settings.webhook.secret_file) is not None:
        owner = at.settings.slurm_user
        how = f"run (umask 077; cat > {secret}) and enter the secret, then run chown {owner} {secret}"
        try:
            read_secret(secret)
        except NotSentError as error:
            yield unreadable(error) or fail(f"no notice can be sent to the webhook: {error}", how)
        else:
            yield from _readable(at, secret, f"run chown {owner} {secret}")
    yield from _tried(
        WebhookChannel(settings.webhook).try_out,
        f"correct url: under webhook: in {FILE_NAME}, or allow this host to reach that URL; if its "
        "certificate is "
        "not trusted, add the site's certificate authority to those that the system trusts",
        settings,
    )


def _tried(try_out: Callable[[], None], remedy: str, settings: Settings) -> Iterator[CheckResult]:
    try:
        try_out()
    except NotSentError as error:
        yield (fail if settings.sends else warn)(f"no notice can be sent: {error}", remedy)


def _readable(at: DoctorContext, path: Path, remedy: str | None = None) -> Iterator[CheckResult]:
    """Check that SlurmUser, the user of slurm-gpuctld, may read the file; root may read all files."""
    denied = denies(path, at.settings.slurm_user_uid)
    if denied is not None:
        yield fail(
            f"SlurmUser {at.settings.slurm_user}, the user of slurm-gpuctld, may not read {path}: "
            f"{denied.part} denies access",
            remedy if remedy is not None and denied.part == path else denied.remedy,
        )
