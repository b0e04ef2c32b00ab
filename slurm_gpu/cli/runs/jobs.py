"""`slurm-gpu jobs`: list runs, one row per run."""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import check_format, is_narrow, print_csv, print_json, print_table, remark
from slurm_gpu.cli.runs.filters import SHORT_STATES, filter_options, filters_of
from slurm_gpu.cli.runs.parquet import write_runs
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import UsageError
from slurm_gpu.text.cells import count, hours, not_quite, number, text
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.runs import Run

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

_LIMIT, _AT_ONCE = 100, 1000
COLUMNS = (
    "JobID",
    "user",
    "account",
    "state",
    "nNODE",
    "nGPU",
    "WAIT_h",
    "RUN_h",
    "uGPUcore",
    "uGPUmem",
    "coverage",
)
_NAMES = ("user", "account")
_SPARE = ("nNODE", "WAIT_h", "account", "coverage", "user", "uGPUmem", "state")
"""Columns to drop on a narrow terminal, in order; `*` still marks low coverage."""

CSV_COLUMNS = (
    *("id", "user", "account", "qos", "partition", "state", "submit_s", "eligible_s", "start_s", "end_s"),
    *("nNODE", "nGPU", "gpu_type", "WAIT_h", "SUBMIT_WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
    *("energy_j", "nodes", "server_type", "zone", "app", "app_field"),
)


@click.command()
@filter_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Rows per page. [default: 100]")
@click.option(
    "--page", type=click.IntRange(min=1), default=1, metavar="N", help="Page of the list, starting at 1."
)
@click.option("--all", "every", is_flag=True, help="Print all rows.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the columns of --csv to a Parquet file, with all rows unless --limit is given.",
)
@with_site
def jobs(
    site: CommandSite,
    limit: int | None,
    page: int,
    *,
    every: bool,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None,
    **chosen: Any,
) -> None:
    """List runs, the most recently submitted first.

    WAIT_h is the time from eligible to start; uGPUcore and uGPUmem are percentages, averaged over the GPUs
    and the time of the run. A dash marks a gap: the value was not measured, or the run is another user's.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    if parquet is not None and (as_json or as_csv):
        raise UsageError("--parquet writes a file and prints nothing: leave out --json and --csv")
    if every and (limit is not None or page > 1):
        raise UsageError("--all cannot be combined with --limit or --page")
    most = None if every or (parquet is not None and limit is None) else (_LIMIT if limit is None else limit)
    if most is None and page > 1:
        raise UsageError("--page N needs --limit, the number of rows per page")
    filters = filters_of(site, chosen)
    with site.database() as database:
        found = _Found(database, filters, most, page)
        if parquet is not None:
            n_rows = write_runs(parquet, CSV_COLUMNS, (run.to_json() for run in found.runs()))
            remark(f"{parquet} has {counted(n_rows, 'run')}")
        elif as_json:
            print_json({"runs": [run.to_json() for run in found.runs()]})
        elif as_csv:
            print_csv(CSV_COLUMNS, (run.to_json() for run in found.runs()))
        else:
            runs = list(found.runs())
            if runs:
                _print_table(runs, site.config.sampling.min_coverage)
    found.print_rest(chosen["sort"])
    if not found.any and (strange := _strange(chosen["user"])):
        remark(f"this host has no user {', '.join(strange)}")


def _strange(users: str | None) -> list[str]:
    """Return the requested names that are not users of this host, such as mistyped or deleted users."""
    names = [name.strip() for name in (users or "").split(",")]
    return [name for name in names if name and not _is_known(name)]


def _is_known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class _Found:
    """The runs of a page, read as needed."""

    def __init__(
        self, database: DatabaseClient, filters: Mapping[str, Any], most: int | None, page: int
    ) -> None:
        self._database, self._filters, self._most, self._page = database, filters, most, page
        self._n = self._matching = 0
        self._more = False

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the page, with a limited number in memory at once."""
        before = 0 if self._most is None else self._most * (self._page - 1)
        at_once = _AT_ONCE if self._most is None else min(before + self._most + 1, _AT_ONCE)
        for n, run in enumerate(self._database.all_runs(**self._filters, limit=at_once)):
            if self._most is not None and n == before + self._most:
                self._more = True
                return
            self._matching = n + 1
            if n >= before:
                self._n += 1
                yield run

    @property
    def any(self) -> bool:
        """Return whether the page has any run."""
        return self._n > 0

    def print_rest(self, sort: str) -> None:
        """Print a remark if the page has no runs or if more runs match."""
        if not self._n:
            remark(
                f"page {self._page} does not exist: {self._pages()}" if self._matching else "no runs match"
            )
        elif self._more:
            which = "the last" if sort == "submit" and self._page == 1 else "these are"
            pages = "" if self._page == 1 else f", page {self._page}"
            remark(
                f"{which} {counted(self._n, 'run')}{pages}; there are more (--limit, --page {self._page + 1})"
            )

    def _pages(self) -> str:
        """Describe the number of matching runs and the last page, if the requested page does not exist."""
        assert self._most is not None
        last = -(-self._matching // self._most)
        match = "matches" if self._matching == 1 else "match"
        return f"{counted(self._matching, 'run')} {match}, and the last page is {last}"


def _print_table(found: list[Run], min_coverage: float) -> None:
    thin = [run.coverage is not None and run.coverage < min_coverage for run in found]
    rows = (_row(run, is_thin) for run, is_thin in zip(found, thin, strict=True))
    print_table(COLUMNS, rows, right=COLUMNS[4:], whole=("JobID",), cut=_NAMES, spare=_SPARE)
    if any(thin):
        remark(f"* not reliable: measured for less than {min_coverage:.0%} of the time")


def _row(run: Run, is_thin: bool) -> list[str]:
    mark = "*" if is_thin else ""
    return [
        run.id,
        text(run.user),
        text(run.account),
        _state(run.state),
        number(run.n_nodes),
        count(run.n_gpus if run.has_started else run.n_gpus_requested),
        hours(run.wait_h),
        hours(run.run_h),
        number(run.ugpucore, 1) + (mark if run.ugpucore is not None else ""),
        number(run.ugpumem, 1) + (mark if run.ugpumem is not None else ""),
        number(not_quite(run.coverage), 2) + mark,
    ]


def _state(state: str) -> str:
    """Return the state in full, or squeue's abbreviation on a narrow terminal."""
    return SHORT_STATES.get(state, state) if is_narrow() else state
