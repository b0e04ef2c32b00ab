"""`slurm-gpu jobs`: one row per run."""

from __future__ import annotations

import itertools
from zoneinfo import ZoneInfo

import click
from click.shell_completion import CompletionItem

from slurm_gpu.cli.cells import count, hours, moment, number, text
from slurm_gpu.cli.output import check_format, is_narrow, print_csv, print_json, print_table, remark
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.cli.times import parse_moment
from slurm_gpu.database.client import Run
from slurm_gpu.errors import UsageError
from slurm_gpu.units import counted

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
"""What is left out first where a terminal has no room for all; `*` goes on marking a thin coverage."""

_SHORT_STATES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "RESIZING": "RS",
    "REVOKED": "RV",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
CSV_COLUMNS = (
    *("id", "user", "account", "qos", "partition", "state", "submit_s", "eligible_s", "start_s", "end_s"),
    *("nNODE", "nGPU", "gpu_type", "WAIT_h", "SUBMIT_WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
    *("energy_j", "nodes"),
)


def _complete_state(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell: the last of the states in a list."""
    before, comma, last = incomplete.rpartition(",")
    states = (state for state in _SHORT_STATES if state.startswith(last.upper()))
    return [CompletionItem(f"{before}{comma}{state}") for state in states]


@click.command()
@click.option("--user", help="Only this user's runs.")
@click.option("--account", help="Only this account's runs.")
@click.option(
    "--state",
    help="Only runs in these states, such as RUNNING or FAILED,TIMEOUT.",
    shell_complete=_complete_state,
)
@click.option(
    "--since", metavar="WHEN", help="Not those that ended before: 2026-11-01, or 7d for a week ago."
)
@click.option("--until", metavar="WHEN", help="Only those submitted before.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Rows at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/commands.md has its keys.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@with_site
def jobs(
    site: Site,
    user: str | None,
    account: str | None,
    state: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
    as_csv: bool,
) -> None:
    """One row per run, the last submitted first.

    WAIT_h is from eligible to start; uGPUcore and uGPUmem are percent, as means over the run's GPUs and time.
    A dash is a gap: nothing was measured, or the run is another user's.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    states = _states(state)
    zone, now_s = ZoneInfo(site.config.timezone), site.wall()
    since_s = parse_moment("--since", since, zone, now_s)
    until_s = parse_moment("--until", until, zone, now_s)
    if since_s is not None and until_s is not None and until_s <= since_s:
        raise UsageError(
            f"--until {until} is {moment(until_s, zone)}, and --since {since} is {moment(since_s, zone)}: "
            "--until has to be later"
        )
    with site.database() as database:
        found = list(
            itertools.islice(
                database.all_runs(
                    user=user,
                    account=account,
                    states=states,
                    since_s=since_s,
                    until_s=until_s,
                    limit=min(limit + 1, 1000),
                ),
                limit + 1,
            )
        )
    if len(found) > limit:
        found.pop()
        remark(f"the last {counted(limit, 'run')}; there are more (--limit)")
    if not found:
        remark("no runs match")
    if as_json:
        print_json({"runs": [run.to_json() for run in found]})
    elif as_csv:
        print_csv(CSV_COLUMNS, (run.to_json() for run in found))
    else:
        _print_table(found, site.config.sampling.min_coverage)


def _print_table(found: list[Run], min_coverage: float) -> None:
    thin = [run.coverage is not None and run.coverage < min_coverage for run in found]
    rows = (_row(run, is_thin) for run, is_thin in zip(found, thin, strict=True))
    print_table(COLUMNS, rows, right=COLUMNS[4:], whole=("JobID",), cut=_NAMES, spare=_SPARE)
    if any(thin):
        remark(f"* measured for less than {min_coverage:.0%} of the time; nothing should be judged by it")


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
        number(run.coverage, 2) + mark,
    ]


def _states(option: str | None) -> tuple[str, ...]:
    """The states of --state, in full; squeue's abbreviations are taken too."""
    full = {short: state for state, short in _SHORT_STATES.items()}
    states = []
    for word in (option or "").replace(" ", "").upper().split(","):
        state = full.get(word, word)
        if state and state not in _SHORT_STATES:
            raise UsageError(f"--state {word}: Slurm has no such state; it has {', '.join(_SHORT_STATES)}")
        if state:
            states.append(state)
    return tuple(states)


def _state(state: str) -> str:
    """In full, or on a narrow terminal as squeue abbreviates it."""
    return _SHORT_STATES.get(state, state) if is_narrow() else state
