"""A diagnosis as a page, in a file that `--html` names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu import __version__
from slurm_gpu.cli.cells import moment
from slurm_gpu.database.client import Run
from slurm_gpu.diagnose.case import Rules, build_case
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.verdict import Verdict
from slurm_gpu.errors import OutsideError
from slurm_gpu.units import counted
from slurm_gpu.wholefile import whole_file

SOURCES = {"window": "its last ten minutes", "timeline": "its whole course"}


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and what it stands on: `by` is a key of SOURCES."""

    by: str
    series: Series
    groups: Groups | None
    verdict: Verdict


def write_page(path: Path, run: Run, judged: Judged, rules: Rules, timezone: str, now_s: float) -> None:
    """Whole or not at all, readable by its owner alone; OutsideError where it cannot be written."""
    # Only who asks for a page waits for what draws it.
    from slurm_gpu.reports.diagnosed.document import diagnosis_html
    from slurm_gpu.reports.diagnosed.look import Look

    zone = ZoneInfo(timezone)
    name = f": {run.name}" if run.name else ""
    until = "now" if run.end_s is None else moment(run.end_s, zone)
    page = diagnosis_html(
        Look(
            title=f"Job {run.id}{name}",
            about=[
                f"{run.user} in {run.account}",
                counted(len(judged.series.workers), f"{run.gpu_type} GPU" if run.gpu_type else "GPU"),
                f"{counted(run.n_nodes, 'node')} {run.nodes}",
                *([run.app] if run.app else []),
                f"{moment(run.start_s, zone)} to {until}",
            ],
            by=SOURCES[judged.by],
            case=build_case(judged.series, judged.groups, rules, run.end_s is None),
            verdict=judged.verdict,
            timezone=timezone,
            made=f"version {__version__}, on {moment(int(now_s), zone)}",
        )
    )
    try:
        with whole_file(path) as unfinished:
            unfinished.write_text(page, "utf-8")
    except OSError as error:
        raise OutsideError(f"--html {path}: cannot be written: {error.strerror or error}") from error
