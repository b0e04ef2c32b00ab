"""Check that slurm-gpuweb answers users and may read everything that its pages show."""

from __future__ import annotations

import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx

from slurm_gpu.cli.doctor.checks.daemons.processes import ports, running
from slurm_gpu.cli.doctor.checks.daemons.services import restart, revive, start_and_log
from slurm_gpu.cli.doctor.checks.files.secret_files import kept_out
from slurm_gpu.cli.doctor.checks.finding import (
    WEB_FILE,
    CheckResult,
    DoctorContext,
    Level,
    fail,
    ok,
    skipped,
    unreadable,
    warn,
)
from slurm_gpu.errors import InputError
from slurm_gpu.http.web_reader import DEFAULT_WEB_USER
from slurm_gpu.monitor.settings import WebSettings, load_settings
from slurm_gpu.text.cells import span

_DAEMON = "slurm-gpuweb"
_TIMEOUT_S = 10.0
_PAGE = "/signin"
_CONTENT = "slurm-gpu"


def answers(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpuweb runs on its host, and answers at the address that users open."""
    processes = running(_DAEMON)
    given = [process.option("--web-config") for process in processes]
    default = at.site.config_path.absolute().parent / WEB_FILE
    path = next((Path(one) for one in given if one is not None), default)
    is_here = bool(processes) or path.exists()
    found = list(_here(at, path)) if is_here else []
    yield from found
    if any(one.level is not Level.SKIPPED for one in found):
        return
    web = at.site.config.web
    if web is not None and (error := _refused(web)) is not None:
        listens = ports(processes)
        where = f" (slurm-gpuweb on this host listens on port {listens[0]})" if listens else ""
        yield (fail if is_here else warn)(
            f"slurm-gpuweb does not answer at {web}, the address that slurm-gpu web prints: {error}",
            f"compare web: in {at.site.config_path} with listen: and url: in {WEB_FILE} on "
            "slurm-gpuweb's host"
            f"{where}, and with the reverse proxy; run curl -v {web}{_PAGE}",
        )
    elif web is not None:
        yield ok(f"slurm-gpuweb answers at {web}")
    elif is_here and not found:
        yield ok("slurm-gpuweb answers on this host; slurm-gpu web needs web: in slurm-gpu.yaml")
    elif not is_here:
        yield skipped(f"{path} does not exist, and slurm-gpu.yaml does not set web:")


def _here(at: DoctorContext, path: Path) -> Iterator[CheckResult]:
    processes = running(_DAEMON)
    uid = next((process.uid for process in processes), None)
    try:
        uid = pwd.getpwnam(DEFAULT_WEB_USER).pw_uid if uid is None else uid
    except KeyError:
        uid = None
    try:
        settings = load_settings(path) if path.exists() else WebSettings()
    except InputError as error:
        yield unreadable(error) or fail(str(error), f"fix {path}; {restart(at, _DAEMON)}")
        return
    if uid is not None and path.exists():
        yield from kept_out(path, uid, _name(uid), _DAEMON)
    key = settings.session.key_file
    if key is not None and key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        yield fail(
            f"users other than its owner may read {key}, which signs sessions",
            f"run chmod 0600 {shlex.quote(str(key))}; {restart(at, _DAEMON)}",
        )
    if not processes:
        yield fail(f"{path} exists, but slurm-gpuweb is not running", start_and_log(at, _DAEMON))
        return
    host = "127.0.0.1" if settings.listen.host == "0.0.0.0" else settings.listen.host
    address = (
        f"http://[{host}]:{settings.listen.port}" if ":" in host else f"http://{host}:{settings.listen.port}"
    )
    if (why := _refused(address)) is not None:
        listens = ports(processes)
        where = (
            f"; it listens on port {listens[0]}" if listens and settings.listen.port not in listens else ""
        )
        yield fail(
            f"slurm-gpuweb runs on this host, but does not answer at {address} (listen: in {path}{where}): "
            f"{why}",
            revive(at, _DAEMON),
        )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _refused(address: str) -> str | None:
    """Return why slurm-gpuweb does not serve its page; None if it does, or if it asks users to sign in."""
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.get(address + _PAGE)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if answer.status_code >= 500 or answer.status_code == 404:
        return f"it answers with status {answer.status_code}"
    if answer.is_success and _CONTENT not in answer.text:
        return "the page there is not slurm-gpuweb's"
    return None


def reads_everything(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpudbd has not recently refused requests of slurm-gpuweb."""
    with at.site.database() as database:
        health = database.health()
    for refused in health.web_refused:
        user = "" if refused.get("user") is None else f" ({refused['user']})"
        host = refused.get("address") or "slurm-gpudbd's host"
        yield fail(
            f"slurm-gpudbd refuses uid {refused['uid']}{user} from {host}, which requests every run as "
            f"slurm-gpuweb does: {refused['why']}; the last request was "
            f"{span(health.now_s - refused['at_s'])} ago",
            f"if slurm-gpuweb runs there as that user, add {refused['write']} to slurm-gpudbd.yaml on "
            "slurm-gpudbd's host, then restart slurm-gpudbd; otherwise ignore this: any user can send such "
            "requests",
        )
    if not health.web_refused:
        yield ok("slurm-gpudbd has not refused requests of slurm-gpuweb within the last 10 minutes")
