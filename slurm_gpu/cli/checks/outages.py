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


_OUTAGES = (
    _Outage(
        re.compile(r"is munged running\?"),
        "munged does not answer on this host",
        "systemctl start munge; journalctl -u munge says why it stopped",
    ),
    _Outage(
        re.compile(r"the database does not answer: (?P<detail>.*)", re.DOTALL),
        "slurm-gpudbd runs, but its database does not answer",
        "systemctl start mariadb on the host that `url` in slurm-gpudbd.yaml names; journalctl -u mariadb",
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


def trouble(error: str, otherwise: str, prefix: str = "") -> Finding:
    """A failure that names the daemon to start where the error tells; else the error, and `otherwise`."""
    for outage in _OUTAGES:
        if match := outage.said.search(error):
            detail = match.groupdict().get("detail")
            return fail(prefix + outage.message + (f": {detail}" if detail else ""), outage.remedy)
    return fail(prefix + error, otherwise)
