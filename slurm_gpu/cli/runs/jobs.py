"""`slurm-gpu jobs`: list runs, one row per run."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import check_format, print_csv, print_json, print_table, remark
from slurm_gpu.cli.runs.columns import DEFAULT_COLUMNS, RUN_COLUMNS, CellContext, parse_format
from slurm_gpu.cli.runs.filters import filter_options, filters_of
from slurm_gpu.cli.runs.parquet import write_runs
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.errors import UsageError
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.runs import Run

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

_LIMIT, _AT_ONCE = 100, 1000
_NAMES = ("name", "user", "account")
_SPARE = ("nNODE", "WAIT_h", "account", "ended", "coverage", "uGPUmem", "name", "elapsed/limit", "state")
"""Columns to drop on a narrow terminal, in order; `*` still marks low coverage."""
_SPARE_OF_ALL = (*_SPARE[:5], "name", "user", *_SPARE[5:])
"""The same for a list of several users' runs."""

CSV_COLUMNS = (
    *("id", "user", "account", "qos", "partition", "state", "submit_s", "eligible_s", "start_s", "end_s"),
    *("nNODE", "nGPU", "gpu_type", "WAIT_h", "SUBMIT_WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
    *("energy_j", "nodes", "server_type", "zone", "app", "app_field"),
)


@click.command()
@click.option(
    "-a", "--all-users", is_flag=True, help="Runs of all users; the default for root, as with sacct."
)
@click.option("-j", "--job", "job_ids", metavar="JOBS", help="Only these jobs, such as 17,16_3.")
@filter_options
@click.option(
    "-o",
    "--format",
    "columns",
    metavar="NAMES",
    help="Columns of the table or of --csv, such as id,name,uGPUcore.",
)
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
    job_ids: str | None,
    columns: str | None,
    *,
    all_users: bool,
    every: bool,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None,
    **chosen: Any,
) -> None:
    """List your runs, the most recently submitted first; with -a, those of all users.

    WAIT_h is the time from eligible to start; uGPUcore and uGPUmem are percentages, averaged over the GPUs
    and the time of the run. A dash marks a gap: the value was not measured, or the run is another user's.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    if parquet is not None and (as_json or as_csv):
        raise UsageError("--parquet writes a file and prints nothing: leave out --json and --csv")
    if columns is not None and (as_json or parquet is not None):
        raise UsageError("--format selects columns of the table or of --csv: leave out --json and --parquet")
    if every and (limit is not None or page > 1):
        raise UsageError("--all cannot be combined with --limit or --page")
    if all_users and chosen["user"] is not None:
        raise UsageError("--all-users and --user are mutually exclusive")
    most = None if every or (parquet is not None and limit is None) else (_LIMIT if limit is None else limit)
    if most is None and page > 1:
        raise UsageError("--page N needs --limit, the number of rows per page")
    is_own = _is_own(chosen, all_users) and job_ids is None
    if is_own:
        chosen["user"] = uid_and_name(None)[1]
    wanted = None if columns is None else parse_format(columns)
    filters = filters_of(site, chosen)
    with site.database() as database:
        if job_ids is None:
            found = _Found(database.all_runs, filters, most, page)
        else:
            found = _Found(_runs_of(database, _job_ids(job_ids, chosen)), {}, most, page)
        if parquet is not None:
            n_rows = write_runs(parquet, CSV_COLUMNS, (run.to_json() for run in found.runs()))
            remark(f"{parquet} has {counted(n_rows, 'run')}")
        elif as_json:
            print_json({"runs": [run.to_json() for run in found.runs()]})
        elif as_csv:
            print_csv(CSV_COLUMNS if wanted is None else wanted, (run.to_json() for run in found.runs()))
        else:
            runs = list(found.runs())
            if runs:
                default = tuple(name for name in DEFAULT_COLUMNS if name != "user" or not is_own)
                context = CellContext(ZoneInfo(site.config.timezone), site.config.sampling.min_coverage)
                _print_table(runs, default if wanted is None else wanted, context)
    found.print_rest(
        chosen["sort"],
        f"no runs of {chosen['user']} match; -a lists all users" if is_own else "no runs match",
    )
    if not found.any and not is_own and (strange := _strange(chosen["user"])):
        remark(f"this host has no user {', '.join(strange)}")


def _is_own(chosen: Mapping[str, Any], all_users: bool) -> bool:
    """Return whether only the caller's runs are listed: by default, except for root."""
    names_owner = any(chosen[name] is not None for name in ("user", "account", "team"))
    return not (all_users or names_owner or os.geteuid() == 0)


def _job_ids(text: str, chosen: Mapping[str, Any]) -> Sequence[str]:
    """Return the requested jobs; raise UsageError for filters, which do not apply to them."""
    for name, value in chosen.items():
        if value not in (None, False) and (name, value) != ("sort", "submit"):
            option = name.replace("_", "-")
            raise UsageError(f"--job cannot be combined with --{option}: it lists these jobs in this order")
    return [name.strip() for name in text.split(",") if name.strip()]


def _runs_of(database: DatabaseClient, job_ids: Sequence[str]) -> Callable[..., Iterator[Run]]:
    """Return a function that yields the runs of each job, the newest first."""

    def runs(**_: Any) -> Iterator[Run]:
        for job_id in job_ids:
            yield from database.run(job_id)

    return runs


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
        self,
        read: Callable[..., Iterator[Run]],
        filters: Mapping[str, Any],
        most: int | None,
        page: int,
    ) -> None:
        self._read, self._filters, self._most, self._page = read, filters, most, page
        self._n = self._matching = 0
        self._more = False

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the page, with a limited number in memory at once."""
        before = 0 if self._most is None else self._most * (self._page - 1)
        at_once = _AT_ONCE if self._most is None else min(before + self._most + 1, _AT_ONCE)
        for n, run in enumerate(self._read(**self._filters, limit=at_once)):
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

    def print_rest(self, sort: str, nothing: str) -> None:
        """Print a remark if the page has no runs (`nothing`) or if more runs match."""
        if not self._n:
            remark(f"page {self._page} does not exist: {self._pages()}" if self._matching else nothing)
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


def _print_table(found: Sequence[Run], names: Sequence[str], context: CellContext) -> None:
    columns = [RUN_COLUMNS[name] for name in names]
    print_table(
        [column.title for column in columns],
        [[column.cell(run, context) for column in columns] for run in found],
        right=[column.title for column in columns if column.right],
        whole=("JobID",),
        cut=_NAMES,
        spare=_SPARE_OF_ALL if "user" in names else _SPARE,
    )
    if any(map(context.is_thin, found)):
        remark(f"* not reliable: measured for less than {context.min_coverage:.0%} of the time")
