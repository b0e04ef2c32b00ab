"""What the errors of a stopped daemon look like, and which daemon it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_gpu.cli.checks.finding import Finding, fail


@dataclass(frozen=True, slots=True)
class _Outage:
    """A daemon that is down, by what is then said of it."""

    said: re.Pattern[str]
    message: str
    remedy: str


def _database(said: str, message: str, remedy: str) -> _Outage:
    """Of the database of slurm-gpudbd, which tells why in its own words."""
    words = re.compile(rf"the database does not answer: (?P<detail>.*(?:{said}).*)", re.DOTALL)
    return _Outage(words, f"slurm-gpudbd runs, but {message}", remedy)


_OUTAGES = (
    _Outage(
        re.compile(r"is munged running\?|Munge encode failed"),
        "munged does not answer on this host",
        "systemctl start munge; journalctl -u munge says why it stopped",
    ),
    _database(
        r"disk (?:is )?full|is full|[Nn]o space left",
        "its database has no room left",
        "df -h on its host: /var/lib/slurm-gpu, or MariaDB's directories; nodes keep their records meanwhile",
    ),
    _database(
        r"readonly database|unable to open database file|denied|Unknown database",
        "may not use its database",
        "SQLite: chown slurm /var/lib/slurm-gpu /var/lib/slurm-gpu/slurm-gpu.db*; MariaDB: user, password, "
        "database in slurm-gpudbd.yaml, and GRANT ALL ON that one",
    ),
    _database(
        r"malformed|not a database|crashed|corrupt",
        "its database is damaged",
        "systemctl stop slurm-gpudbd, and put the last backup in its place (`Restore` in operations.md)",
    ),
    _database(
        "",
        "its database does not answer",
        "systemctl start mariadb on the host that `url` in slurm-gpudbd.yaml names; journalctl -u mariadb",
    ),
    _Outage(
        re.compile(r"(sacct|sacctmgr)\b.*Unable to connect to database", re.DOTALL),
        "slurmdbd runs, but its database does not answer",
        "systemctl start mariadb on the host that StorageHost in slurmdbd.conf names; journalctl -u mariadb",
    ),
    _Outage(
        re.compile(
            r"persistent connection|PersistInit|Problem talking to the database|slurmdbd"
            r"|`sacct\b.*gave no answer",
            re.DOTALL,
        ),
        "slurmdbd does not answer",
        "systemctl start slurmdbd on its host (AccountingStorageHost); journalctl -u slurmdbd says why",
    ),
    _Outage(
        re.compile(
            r"Unable to contact slurm ?(controller|ctld)|`scontrol ping` failed.* is DOWN"
            r"|`(scontrol|squeue)\b.*gave no answer",
            re.DOTALL,
        ),
        "slurmctld does not answer",
        "systemctl start slurmctld on the controller; journalctl -u slurmctld says why it stopped",
    ),
)


_NOT_FOUND = "is not on the PATH"
_PATH = (
    "if Slurm is in /opt/slurm: PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH slurm-gpu doctor; for the daemons "
    "PATH=/opt/slurm/bin:/opt/slurm/sbin:/usr/sbin:/usr/bin in /etc/sysconfig/slurm-gpu, then restart them"
)


def finding_slurm(error: str) -> str | None:
    """What to do where an error says that one of Slurm's commands was not found."""
    return _PATH if _NOT_FOUND in error else None


def daemon_that_is_down(error: str) -> str | None:
    """What is the matter, where an error tells which daemon does not answer."""
    return next((outage.message for outage in _OUTAGES if outage.said.search(error)), None)


def trouble(error: str, otherwise: str, prefix: str = "") -> Finding:
    """A failure that names the daemon to start where the error tells; else the error, and `otherwise`."""
    for outage in _OUTAGES:
        if match := outage.said.search(error):
            detail = match.groupdict().get("detail")
            return fail(prefix + outage.message + (f": {detail}" if detail else ""), outage.remedy)
    return fail(prefix + error, finding_slurm(error) or otherwise)
