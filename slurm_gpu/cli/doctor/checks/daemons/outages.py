"""Recognise from an error message which daemon is down."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import ports, running
from slurm_gpu.cli.doctor.checks.daemons.services import (
    continue_stopped,
    restart,
    revive,
    start_and_log,
    start_there,
)
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail
from slurm_gpu.slurm.conf_file import read_conf, settings_named

# Slurm's default for SlurmctldPort.
_SLURMCTLD_PORT = 6817


@dataclass(frozen=True, slots=True)
class _Outage:
    """A daemon that is down, recognised by the errors that it causes."""

    pattern: re.Pattern[str]
    message: str
    remedy: Callable[[DoctorContext], str]


def _database(words: str, message: str, remedy: Callable[[DoctorContext], str]) -> _Outage:
    """Return the outage of slurm-gpudbd's database, recognised by its error message."""
    pattern = re.compile(rf"the database does not answer: (?P<detail>.*(?:{words}).*)", re.DOTALL)
    return _Outage(pattern, f"slurm-gpudbd runs, but {message}", remedy)


def _slurmctld(at: DoctorContext) -> str:
    """Return how to start slurmctld. If it runs on this host, its port probably differs from slurm.conf's."""
    here = running("slurmctld")
    if any(process.is_stopped for process in here):
        return revive(at, "slurmctld")
    if not here:
        return start_there(at, "slurmctld", "on the controller")
    listens = ports(here)
    where = f" (it listens on port {', '.join(map(str, listens))})" if listens else ""
    if listens and not set(listens).isdisjoint(_slurmctld_ports(at)):
        return f"slurmctld runs on this host{where}, as in slurm.conf: {start_and_log(at, 'slurmctld')}"
    return (
        f"slurmctld runs on this host{where}: check SlurmctldHost and SlurmctldPort in slurm.conf, then "
        f"{restart(at, 'slurmctld')}"
    )


def conf_of_commands(at: DoctorContext) -> Path:
    """Return the slurm.conf that Slurm's commands on this host read."""
    path = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    return path if path.exists() else at.conf_cache


def _slurmctld_ports(at: DoctorContext) -> set[int]:
    """Return slurmctld's ports according to this host's slurm.conf; slurmctld itself does not answer."""
    try:
        found = [line.value for line in settings_named(read_conf(conf_of_commands(at)), "SlurmctldPort")]
    except OSError:
        return set()
    first, _, last = (found[-1] if found else str(_SLURMCTLD_PORT)).partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        return set()
    return set(range(int(first), int(last or first) + 1))


def _slurmdbd(at: DoctorContext) -> str:
    here = running("slurmdbd")
    if any(process.is_stopped for process in here):
        return revive(at, "slurmdbd")
    if not here:
        return start_there(at, "slurmdbd", "on its host (AccountingStorageHost)")
    if stopped := stopped_mariadb(at):
        return f"slurmdbd waits for MariaDB: {stopped}"
    listens = ports(here)
    where = f" (it listens on port {', '.join(map(str, listens))})" if listens else ""
    return (
        f"slurmdbd runs on this host{where}: compare AccountingStorageHost and AccountingStoragePort in "
        f"slurm.conf with DbdPort in slurmdbd.conf, then {restart(at, 'slurmdbd')}"
    )


def _mariadb(at: DoctorContext, names: str) -> str:
    here = running("mariadbd") or running("mysqld")
    if not here:
        return start_there(at, "mariadb", f"on the host that {names} names")
    if stopped := continue_stopped(here):
        return stopped
    listens = ports(here)
    where = f" (it listens on port {', '.join(map(str, listens))})" if listens else ""
    return f"MariaDB runs on this host{where}: compare its address with host and port in {names}"


def stopped_mariadb(at: DoctorContext) -> str | None:
    """Return how to resume MariaDB if a signal stopped it on this host; None otherwise."""
    return continue_stopped([*running("mariadbd"), *running("mysqld")])


_OUTAGES = (
    _Outage(
        re.compile(r"is munged running\?|Munge encode failed"),
        "munged does not answer on this host",
        lambda at: start_and_log(at, "munge"),
    ),
    _database(
        r"disk (?:is )?full|is full|[Nn]o space left",
        "its database has no space left",
        lambda _: (
            "run df -h on the host of the database for /var/lib/slurm-gpu or MariaDB's directories, and free "
            "up space; nodes keep their records in the meantime"
        ),
    ),
    _database(
        r"readonly database|unable to open database file|denied",
        "it is not allowed to use its database",
        lambda _: "run chown slurm /var/lib/slurm-gpu /var/lib/slurm-gpu/slurm-gpu.db*",
    ),
    _Outage(
        re.compile(r"the database refuses slurm-gpudbd: (?P<detail>.*?);", re.DOTALL),
        "slurm-gpudbd runs, but it is not allowed to use its database",
        lambda _: (
            "check user, password and database of url in slurm-gpudbd.yaml, and GRANT ALL ON that database"
        ),
    ),
    _database(
        r"malformed|not a database|crashed|corrupt",
        "its database is damaged",
        lambda _: "stop slurm-gpudbd, and restore the last backup (`Restore` in docs/operations.md)",
    ),
    _database(
        "",
        "its database does not answer",
        lambda at: _mariadb(at, "url in slurm-gpudbd.yaml"),
    ),
    _Outage(
        re.compile(r"(sacct|sacctmgr)\b.*Unable to connect to database", re.DOTALL),
        "slurmdbd runs, but its database does not answer",
        lambda at: _mariadb(at, "StorageHost in slurmdbd.conf"),
    ),
    _Outage(
        re.compile(
            r"persistent connection|PersistInit|Problem talking to the database|slurmdbd"
            r"|`sacct(?:mgr)?\b.*gave no answer",
            re.DOTALL,
        ),
        "slurmdbd does not answer",
        _slurmdbd,
    ),
    _Outage(
        re.compile(
            r"Unable to contact slurm ?(controller|ctld)|`scontrol ping` failed.* is DOWN"
            r"|`(scontrol|squeue)\b.*gave no answer",
            re.DOTALL,
        ),
        "slurmctld does not answer",
        _slurmctld,
    ),
)


# Without this time limit, the message would imply that a slow daemon never answers.
_WITHIN = re.compile(r"gave no answer (within \S+ s)\b")
_NOT_FOUND = "is not on the PATH"
_PATH = (
    "if Slurm is in /opt/slurm, run PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH slurm-gpu doctor; for the "
    "daemons, set PATH=/opt/slurm/bin:/opt/slurm/sbin:/usr/sbin:/usr/bin in their environment "
    "(/etc/sysconfig/slurm-gpu if packages installed them), then restart them"
)


def finding_slurm(error: str) -> str | None:
    """Return the remedy if an error reports a missing command of Slurm."""
    return _PATH if _NOT_FOUND in error else None


def daemon_that_is_down(error: str) -> str | None:
    """Return the message for the daemon that does not answer, if an error identifies it."""
    return next((outage.message for outage in _OUTAGES if outage.pattern.search(error)), None)


def failure_from(at: DoctorContext, error: str, otherwise: str, prefix: str = "") -> CheckResult:
    """Return a failure that names the daemon to start.

    If the error identifies no daemon, the remedy is `otherwise`.
    """
    for outage in _OUTAGES:
        if match := outage.pattern.search(error):
            detail, within = match.groupdict().get("detail"), _WITHIN.search(error)
            more = f" {within[1]}" if within else f": {detail}" if detail else ""
            return fail(prefix + outage.message + more, outage.remedy(at))
    return fail(prefix + error, finding_slurm(error) or otherwise)
