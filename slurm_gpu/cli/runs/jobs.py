"""`slurm-gpu jobs`: list runs, one row per run."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click
from msgspec import structs

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import check_format, print_csv, print_json, print_table, remark
from slurm_gpu.cli.runs.filters import (
    RECENT_DAYS,
    SORTS,
    chosen_filters,
    filter_options,
    filters_of,
    is_slow,
)
from slurm_gpu.cli.runs.parquet import write_runs
from slurm_gpu.cli.runs.run_columns import TITLES, CellContext, RunColumn, columns_of, usual_columns
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import UsageError
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.runs import Run

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

_LIMIT, _AT_ONCE = 100, 1000
_PERIOD = ("since_s", "until_s")
_REMEDY = "use a wider terminal, -o or --json"
# Columns to shorten, and to drop in this order, on a narrow terminal; `*` still marks low coverage.
_NAMES = ("name", "user", "account")
_SPARE = (
    *("RUN_h", "nNODE", "WAIT_h", "account", "coverage"),
    *("uGPUmem", "user", "end", "name", "elapsed/limit", "state"),
)

CSV_COLUMNS = (
    *("id", "user", "account", "qos", "partition", "state", "submit_s", "eligible_s", "start_s", "end_s"),
    *("nNODE", "nGPU", "gpu_type", "WAIT_h", "SUBMIT_WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
    *("energy_j", "nodes", "server_type", "zone", "app", "app_field"),
)


@click.command()
@filter_options
@click.option("-j", "--jobs", "ids", metavar="IDS", help="Only these jobs of any user, such as 17,18_3.")
@click.option(
    "-o",
    "--format",
    "names",
    metavar="COLUMNS",
    help=f"Columns of the table, CSV or Parquet file: {', '.join(TITLES)}.",
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
    *,
    every: bool,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None,
    ids: str | None,
    names: str | None,
    **chosen: Any,
) -> None:
    """List your runs, the most recently submitted first; -a lists the runs of all users.

    A running job ends by the shown time at the latest, because of its time limit. WAIT_h is the time from
    eligible to start; uGPUcore and uGPUmem are percentages, averaged over the GPUs and the time of the run. A
    dash marks a gap: the value was not measured, or the run is another user's.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    if parquet is not None and (as_json or as_csv):
        raise UsageError("--parquet writes a file and prints nothing: leave out --json and --csv")
    if every and (limit is not None or page > 1):
        raise UsageError("--all cannot be combined with --limit or --page")
    most = None if every or (parquet is not None and limit is None) else (_LIMIT if limit is None else limit)
    if most is None and page > 1:
        raise UsageError("--page N needs --limit, the number of rows per page")
    if names is not None and as_json:
        raise UsageError("--format selects columns, but --json prints every key: leave out one of them")
    columns = None if names is None else columns_of(names)
    keys = CSV_COLUMNS if columns is None else _keys(columns)
    job_ids = _job_ids(ids, chosen)
    filters = {} if job_ids else filters_of(site, chosen)
    is_recent = not job_ids and most is not None and filters.keys().isdisjoint(_PERIOD) and is_slow(chosen)
    if is_recent:
        filters["since_s"] = int(site.wall()) - RECENT_DAYS * 86_400
    with site.database() as database:
        read = partial(_runs_of_jobs, database, job_ids) if job_ids else partial(database.all_runs, **filters)
        found = _Found(read, most, page)
        if parquet is not None:
            n_rows = write_runs(parquet, keys, (run.to_json() for run in found.runs()))
            remark(f"{parquet} has {counted(n_rows, 'run')}")
        elif as_json:
            print_json({"runs": [run.to_json() for run in found.runs()]})
        elif as_csv:
            print_csv(keys, (run.to_json() for run in found.runs()))
        else:
            runs = list(found.runs())
            if runs:
                context = CellContext(
                    zone=ZoneInfo(site.config.timezone), min_coverage=site.config.sampling.min_coverage
                )
                is_own = not job_ids and not chosen["all_users"] and chosen["user"] is None
                if columns is not None:
                    _print_table(runs, columns, [column.title for column in columns[:0:-1]], context)
                else:
                    _print_table(runs, usual_columns(with_user=not is_own), _SPARE, context)
    found.print_rest(chosen["sort"])
    if is_recent:
        remark(f"runs of the last {RECENT_DAYS} days; -S selects an earlier start, and --all lists all runs")
    if job_ids or found.matching:
        return
    remark(_searched(filters.get("user"), chosen))
    if strange := _strange(chosen["user"]):
        remark(f"this host has no user {', '.join(strange)}")


def _keys(columns: Sequence[RunColumn]) -> Sequence[str]:
    return tuple(dict.fromkeys(key for column in columns for key in column.keys))


def _job_ids(ids: str | None, chosen: Mapping[str, Any]) -> Sequence[str]:
    """Return the jobs of --jobs; raise UsageError for a filter, which would hide some of them."""
    if ids is None:
        return ()
    given = chosen_filters(chosen)
    for name in ("user", "all_users", "ascending"):
        given += [f"--{name.replace('_', '-')}"] if chosen[name] else []
    given += [] if chosen["sort"] == SORTS[0] else ["--sort"]
    if given:
        raise UsageError(f"--jobs lists all runs of the given jobs, newest first: leave out {given[0]}")
    found = tuple(dict.fromkeys(word.strip() for word in ids.split(",") if word.strip()))
    if not found:
        raise UsageError(f"--jobs {ids!r}: write job IDs, such as 17,18_3")
    return found


def _runs_of_jobs(database: DatabaseClient, ids: Sequence[str], limit: int) -> Iterator[Run]:
    """Yield the runs of jobs as they appear in lists, without records; `limit` is not needed."""
    for job_id in ids:
        page = database.run_page(job_id)
        if not page.runs:
            remark(f"Slurm's accounting has no job {job_id}; slurm-gpu job {job_id} also finds held jobs")
        if page.left_out:
            remark(f"older runs of {job_id} are not shown ({page.left_out}): specify a task")
        for run in page.runs:
            yield structs.replace(run, devices=None, hosts=None, events=None, device_facts=None)


def _searched(user: str | None, chosen: Mapping[str, Any]) -> str:
    """Return what was searched without success, and the options that search more."""
    whose = "the runs of all users" if user is None else f"the runs of {user}"
    if user is not None and chosen["user"] is None:
        whose = f"your runs ({user})"
    given = chosen_filters(chosen)
    wider = ["-a for all users"] if user is not None else []
    wider += ["an earlier -S"] if chosen["since"] is not None else []
    wider += ["fewer filters"] if len(given) > (chosen["since"] is not None) else []
    searched = f"searched {whose}" + (f" with {' '.join(given)}" if given else "")
    return f"{searched}; to search more, use {_either(wider)}" if wider else searched


def _either(ways: Sequence[str]) -> str:
    return " or ".join((*([", ".join(ways[:-1])] if ways[1:] else []), ways[-1]))


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

    def __init__(self, read: Callable[..., Iterable[Run]], most: int | None, page: int) -> None:
        self._read, self._most, self._page = read, most, page
        self._n = self.matching = 0
        self._more = False

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the page, with a limited number in memory at once."""
        before = 0 if self._most is None else self._most * (self._page - 1)
        at_once = _AT_ONCE if self._most is None else min(before + self._most + 1, _AT_ONCE)
        for n, run in enumerate(self._read(limit=at_once)):
            if self._most is not None and n == before + self._most:
                self._more = True
                return
            self.matching = n + 1
            if n >= before:
                self._n += 1
                yield run

    def print_rest(self, sort: str) -> None:
        """Print a remark if the page has no runs or if more runs match."""
        if not self._n:
            remark(f"page {self._page} does not exist: {self._pages()}" if self.matching else "no runs match")
        elif self._more:
            which = "the last" if sort == "submit" and self._page == 1 else "these are"
            pages = "" if self._page == 1 else f", page {self._page}"
            remark(
                f"{which} {counted(self._n, 'run')}{pages}; there are more (--limit, --page {self._page + 1})"
            )

    def _pages(self) -> str:
        """Describe the number of matching runs and the last page, if the requested page does not exist."""
        assert self._most is not None
        last = -(-self.matching // self._most)
        match = "matches" if self.matching == 1 else "match"
        return f"{counted(self.matching, 'run')} {match}, and the last page is {last}"


def _print_table(
    found: Sequence[Run], columns: Sequence[RunColumn], spare: Sequence[str], context: CellContext
) -> None:
    titles = [column.title for column in columns]
    rows = ([column.cell(run, context) for column in columns] for run in found)
    right = [column.title for column in columns if column.is_number]
    print_table(titles, rows, right=right, whole=("JobID",), cut=_NAMES, spare=spare, remedy=_REMEDY)
    if any(map(context.is_thin, found)):
        remark(f"* not reliable: measured for less than {context.min_coverage:.0%} of the time")
