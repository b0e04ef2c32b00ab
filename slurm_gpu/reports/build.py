"""Build a report: read the period, calculate the figures, and write the page, tables and pictures."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu import __version__
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import DatabaseError, OutsideError, UsageError
from slurm_gpu.files.atomic import whole_file, write_whole
from slurm_gpu.policy.language.model import Bundle
from slurm_gpu.reports.figure import Figure
from slurm_gpu.reports.figures import chapters
from slurm_gpu.reports.findings import findings
from slurm_gpu.reports.load import load
from slurm_gpu.reports.page.document import ReportPage, page_html
from slurm_gpu.reports.page.draw import draw
from slurm_gpu.reports.page.svg import svg_file
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.table_files import write_csv, write_parquet
from slurm_gpu.reports.totals import totals_of
from slurm_gpu.text.cells import minute

PAGE_NAME = "report.html"
TABLES, PICTURES = "tables", "figures"


# A function that is called before each step and after the last step. Its arguments are the number of
# completed steps, the total number, and the next step.
ReportProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class BuiltReport:
    """The path of a report's page, and the report's numbers of files, runs and figures."""

    page: Path
    files: int
    runs: int
    figures: int


def open_database(url: str) -> Database:
    """Open the database; raise DatabaseError if its tables are missing or belong to an older version."""
    database = Database(url, answers_within_s=None)
    if database.is_due():
        raise DatabaseError(
            f"{database.server()} has no tables, or tables of an older slurm-gpu: start slurm-gpudbd, or run "
            "`slurm-gpu db upgrade`"
        )
    return database


def build_report(
    database: Database,
    config: SiteConfig,
    period: ReportPeriod,
    out: Path,
    now_s: float,
    *,
    progress: ReportProgress,
    low_priority: Collection[str] = (),
    bundles: Sequence[Bundle] = (),
    with_files: bool = True,
) -> BuiltReport:
    """Write `out`/report.html and, if `with_files`, the table of each figure (CSV, Parquet) and its picture.

    Figures without data have an empty table and no picture (SVG, PNG).

    `low_priority` contains the QOS of preemptible jobs, and `bundles` the policy's resource types. Each file
    appears only when it is complete. Only the owner may read the files, because they name users and jobs.
    Raise DatabaseError if the database is down, UsageError if `out` is not a directory, and OutsideError if
    `out` is not writable.
    """
    _make_directories(out, with_files)
    total = 3
    progress(0, total, "reading the accounting data")
    data = load(database, config, period, now_s)
    progress(1, total, "calculating the figures")
    contents = chapters(data, low_priority, bundles)
    figures = [figure for chapter in contents for figure in chapter.figures]
    drawn = [figure for figure in figures if not figure.is_empty]
    total = 3 + (len(figures) + len(drawn) if with_files else 0)
    progress(2, total, "writing the page")
    page = ReportPage(
        title=f"GPU report of {config.cluster}",
        period=period_text(period),
        made=f"version {__version__}, on {_moment(now_s, config.timezone)}",
        findings=findings(totals_of(data.jobs, data.capacity), data.before, config.currency),
        chapters=contents,
        timezone=config.timezone,
        with_files=with_files,
    )
    with _writing(out):
        write_whole(out / PAGE_NAME, page_html(page))
    if with_files:
        _write_files(out, figures, drawn, total, progress)
    progress(total, total, "done")
    files = 1 + (2 * (len(figures) + len(drawn)) if with_files else 0)
    return BuiltReport(out / PAGE_NAME, files, len(data.jobs), len(drawn))


def period_text(period: ReportPeriod) -> str:
    """Return a text such as "1 October to 31 October 2026, Asia/Seoul"; the period includes both days."""
    last = period.until - dt.timedelta(days=1)
    first = period.since
    if first == last:
        return f"{_day(first)} {first.year}, {period.timezone}"
    year = "" if first.year == last.year else f" {first.year}"
    return f"{_day(first)}{year} to {_day(last)} {last.year}, {period.timezone}"


def _write_files(
    out: Path, figures: Sequence[Figure], drawn: Sequence[Figure], total: int, progress: ReportProgress
) -> None:
    # Importing matplotlib takes longer than writing the page.
    from slurm_gpu.reports.page.png import write_png

    done = 3
    for figure in figures:
        progress(done, total, f"table {figure.table.name}")
        with _writing(out):
            write_csv(figure.table, out / TABLES / f"{figure.table.name}.csv")
            write_parquet(figure.table, out / TABLES / f"{figure.table.name}.parquet")
        done += 1
    for figure in drawn:
        progress(done, total, f"picture {figure.id}")
        drawing = draw(figure.chart)
        with _writing(out):
            write_whole(out / PICTURES / f"{figure.id}.svg", svg_file(drawing, figure.title))
        with _writing(out), whole_file(out / PICTURES / f"{figure.id}.png") as unfinished:
            write_png(drawing, unfinished)
        done += 1


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutsideError(f"cannot write to {out}: {error.strerror or error}") from error


def _make_directories(out: Path, with_files: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a directory, which is created if it does not exist")
    with _writing(out):
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (TABLES, PICTURES) if with_files else ():
            (out / name).mkdir(mode=0o700, exist_ok=True)


def _moment(at_s: float, timezone: str) -> str:
    return f"{minute(at_s, ZoneInfo(timezone))} {timezone}"


def _day(day: dt.date) -> str:
    return f"{day.day} {day:%B}"
