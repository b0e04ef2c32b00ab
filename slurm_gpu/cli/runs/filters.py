"""Define the options that select runs, and their shell completion."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
from click.shell_completion import CompletionItem

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.times import parse_period
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import InputError, UsageError

_MOST_GPUS = 1_000_000
Command = TypeVar("Command", bound=Callable[..., Any])

SHORT_STATES = {
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
"""The abbreviations that squeue prints for Slurm's job states."""
# The days of a page whose order or filter has no index in the database, as on slurm-gpuweb.
RECENT_DAYS = 30
SORTS = ("submit", "start", "end", "nNODE", "nGPU", "WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "energy_j")


def _complete_state(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last state in a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    states = (state for state in SHORT_STATES if state.startswith(last.upper()))
    return [CompletionItem(f"{before}{comma}{state}") for state in states]


def _complete_from(names_in: Callable[[SiteConfig], Collection[str]]) -> Callable[..., list[CompletionItem]]:
    """Return a function that completes names defined in slurm-gpu.yaml."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = names_in((ctx.find_object(CommandSite) or CommandSite()).config)
        except InputError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _gpus(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse a number of GPUs, which is fractional for jobs with shards."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _MOST_GPUS:
        right = f"a number of GPUs from 0 to {_MOST_GPUS:,}, such as 0.25 or 8"
        raise click.BadParameter(f"{value!r} is not {right}", ctx, parameter)
    return number


def _teams(config: SiteConfig) -> Collection[str]:
    return () if isinstance(config.team, str) else sorted(set(config.team.values()))


_OPTIONS = (
    click.option(
        "-u", "--user", metavar="NAMES", help="Only runs of these users, such as alice,bob. [default: you]"
    ),
    click.option("-a", "--all-users", is_flag=True, help="List the runs of all users."),
    click.option("-A", "--account", metavar="NAMES", help="Only runs of these accounts, such as vision,nlp."),
    click.option(
        "--team",
        metavar="NAME",
        help="Only runs of this team's accounts.",
        shell_complete=_complete_from(_teams),
    ),
    click.option(
        "-s",
        "--state",
        metavar="STATES",
        help="Only runs in these states, in full or as in sacct: RUNNING, or F,TO.",
        shell_complete=_complete_state,
    ),
    click.option("-p", "--partition", metavar="NAMES", help="Only runs in these partitions."),
    click.option("-q", "--qos", metavar="NAME", help="Only runs with this QOS."),
    click.option("--app", metavar="NAME", help="Only your runs of this application, such as GROMACS."),
    click.option("--gpu-type", metavar="NAME", help="Only runs on GPUs of this type, such as a100."),
    click.option(
        "--server-type",
        metavar="NAME",
        help="Only runs on this server type, as defined in slurm-gpu.yaml.",
        shell_complete=_complete_from(lambda config: config.server_types),
    ),
    click.option(
        "--zone",
        metavar="NAME",
        help="Only runs in this zone, as defined in slurm-gpu.yaml.",
        shell_complete=_complete_from(lambda config: config.zones),
    ),
    click.option(
        "--min-gpus",
        callback=_gpus,
        metavar="N",
        help="Only runs with at least N GPUs, such as 0.25 or 8.",
    ),
    click.option(
        "-S",
        "--since",
        metavar="TIME",
        help="Leave out runs that ended before TIME, such as 2026-11-01, or 7d for a week ago. "
        f"[default: {RECENT_DAYS}d for a page with another order than submit or end, or another filter than "
        "user, account or state]",
    ),
    click.option("-E", "--until", metavar="TIME", help="Only runs submitted before TIME."),
    click.option(
        "--sort",
        type=click.Choice(SORTS),
        default="submit",
        show_default=True,
        help="Column to sort by, in descending order; gaps come last.",
    ),
    click.option("--ascending", is_flag=True, help="Sort ascending."),
)


def filter_options(command: Command) -> Command:
    """Add the filter options to a command, which passes them to `filters_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters_of(site: CommandSite, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters for DatabaseClient.all_runs; raise UsageError for invalid values.

    Without a user, and without --all-users, the runs of the caller are selected, also for operators.
    """
    if chosen["all_users"] and chosen["user"] is not None:
        raise UsageError("--all-users and --user are mutually exclusive")
    zone, now_s = ZoneInfo(site.config.timezone), site.wall()
    since_s, until_s = parse_period(chosen["since"], chosen["until"], zone, now_s)
    same = ("partition", "qos", "app", "gpu_type", "server_type", "zone", "min_gpus")
    filters = {
        **{name: chosen[name] for name in (*same, "ascending")},
        "user": None if chosen["all_users"] else chosen["user"] or uid_and_name(None, "--user")[1],
        "accounts": _accounts(site, chosen["account"], chosen["team"]),
        "states": _states(chosen["state"]),
        "sort": None if chosen["sort"] == SORTS[0] else chosen["sort"],
        "since_s": since_s,
        "until_s": until_s,
    }
    return {name: value for name, value in filters.items() if value not in (None, (), False)}


def is_slow(chosen: Mapping[str, Any]) -> bool:
    """Return whether the database has no index for the chosen order or a chosen filter."""
    no_index = ("partition", "qos", "app", "gpu_type", "server_type", "zone", "min_gpus")
    return chosen["sort"] not in ("submit", "end") or any(chosen[name] is not None for name in no_index)


def chosen_filters(chosen: Mapping[str, Any]) -> list[str]:
    """Return the given filters as options, such as `--state F`, without the user and the order."""
    order = ("user", "all_users", "sort", "ascending")
    return [
        f"--{name.replace('_', '-')} {value}"
        for name, value in chosen.items()
        if name not in order and value is not None
    ]


def _accounts(site: CommandSite, account: str | None, team: str | None) -> tuple[str, ...]:
    """Return the accounts to filter by, or () for all accounts.

    An account that is not listed under `team:` is a team of its own.
    """
    if team is None:
        return () if account is None else (account,)
    teams = {} if isinstance(site.config.team, str) else site.config.team
    accounts = {name for name, of in teams.items() if of == team} | ({team} - teams.keys())
    if account is not None:
        if account not in accounts:
            raise UsageError(
                f"--account {account}: the account belongs to team {teams.get(account, account)}, not to "
                f"{team}; leave out --team or --account"
            )
        return (account,)
    if not accounts:
        raise UsageError(f"--team {team}: no account belongs to that team; see `team:` in slurm-gpu.yaml")
    return tuple(sorted(accounts))


def _states(option: str | None) -> tuple[str, ...]:
    """Return the full names of the states; accept squeue's abbreviations."""
    full = {short: state for state, short in SHORT_STATES.items()}
    states = []
    for word in (option or "").replace(" ", "").upper().split(","):
        state = full.get(word, word)
        if state and state not in SHORT_STATES:
            raise UsageError(
                f"--state {word}: Slurm has no such state; its states are {', '.join(SHORT_STATES)}"
            )
        if state:
            states.append(state)
    return tuple(states)
