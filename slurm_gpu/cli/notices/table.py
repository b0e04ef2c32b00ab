"""Print the table of current alerts and their notices."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from slurm_gpu.alerts.alert import AlertKind
from slurm_gpu.cli.output import print_table
from slurm_gpu.controller.notices.status import OutlookEntry
from slurm_gpu.notices.finding import ENDED, WARNING
from slurm_gpu.text.cells import moment, not_quite, percent, text

_ABOUT = {
    WARNING: "warning",
    ENDED: "ended",
    AlertKind.XID: "GPU error",
    AlertKind.UNHEALTHY: "slow or stuck",
    AlertKind.NEVER_USED: "never used",
    AlertKind.USED_THEN_IDLE: "no longer used",
    AlertKind.MEMORY_IDLE: "memory full, idle",
    AlertKind.PARTLY_UNUSED: "some never used",
    AlertKind.THROTTLED: "throttled",
}


def print_lines(lines: Sequence[OutlookEntry], zone: ZoneInfo) -> None:
    """Print current alerts and their notices."""
    rows = [
        (
            text(one.user),
            text(one.id),
            about(one.kind, one.stage),
            moment(one.since_s, zone),
            f"{percent(not_quite(one.coverage), 0)} %",
            text(one.outcome),
        )
        for one in lines
    ]
    columns = ("user", "job", "GPUs", "since", "seen", "next step")
    print_table(columns, rows, right=("seen",), whole=("job",), cut=("user",), spare=("seen", "since"))


def about(kind: str, stage: int = 0) -> str:
    """Return the subject of a notice in a few words."""
    words = _ABOUT.get(kind, kind)
    return f"{words} {stage + 1}" if kind == WARNING else words
