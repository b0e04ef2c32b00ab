"""Options that say which runs are meant, and what a shell is offered for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
from click.shell_completion import CompletionItem

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.times import parse_period
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
"""By Slurm's states, as squeue abbreviates them."""
SORTS = ("submit", "start", "end", "nNODE", "nGPU", "WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "energy_j")


def _complete_state(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell: the last of the states in a list."""
    before, comma, last = incomplete.rpartition(",")
    states = (state for state in SHORT_STATES if state.startswith(last.upper()))
    return [CompletionItem(f"{before}{comma}{state}") for state in states]


def _complete_from(names_in: Callable[[SiteConfig], Collection[str]]) -> Callable[..., list[CompletionItem]]:
    """For a shell: names that stand in slurm-gpu.yaml."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = names_in((ctx.find_object(CommandSite) or CommandSite()).config)
        except InputError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _gpus(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A number of GPUs, of which shards are parts."""
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
    click.option("--user", help="Only this user's runs, or of several: alice,bob."),
    click.option("--account", help="Only this account's runs, or of several: vision,nlp."),
    click.option("--team", help="Only runs of this team's accounts.", shell_complete=_complete_from(_teams)),
    click.option(
        "--state",
        help="Only runs in these states, such as RUNNING or FAILED,TIMEOUT.",
        shell_complete=_complete_state,
    ),
    click.option("--partition", help="Only runs in this partition, or in several."),
    click.option("--qos", help="Only runs with this QOS."),
    click.option("--app", help="Only runs of this application, such as GROMACS; of one's own."),
    click.option("--gpu-type", help="Only runs on GPUs of this type, such as a100."),
    click.option(
        "--server-type",
        help="Only runs on servers of this type of slurm-gpu.yaml.",
        shell_complete=_complete_from(lambda config: config.server_types),
    ),
    click.option(
        "--zone",
        help="Only runs in this zone of slurm-gpu.yaml.",
        shell_complete=_complete_from(lambda config: config.zones),
    ),
    click.option(
        "--min-gpus",
        callback=_gpus,
        metavar="N",
        help="Only runs with at least N GPUs, such as 0.25 or 8.",
    ),
    click.option(
        "--since", metavar="WHEN", help="Not those that ended before: 2026-11-01, or 7d for a week ago."
    ),
    click.option("--until", metavar="WHEN", help="Only those submitted before then."),
    click.option(
        "--sort",
        type=click.Choice(SORTS),
        default="submit",
        show_default=True,
        help="By what, the latest or most first; gaps last.",
    ),
    click.option("--ascending", is_flag=True, help="The earliest or least first."),
)


def filter_options(command: Command) -> Command:
    """Add them to a command, which takes them as keywords and hands them to `filters_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters_of(site: CommandSite, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What DatabaseClient.all_runs is to be asked; raises UsageError."""
    zone, now_s = ZoneInfo(site.config.timezone), site.wall()
    since_s, until_s = parse_period(chosen["since"], chosen["until"], zone, now_s)
    same = ("user", "partition", "qos", "app", "gpu_type", "server_type", "zone", "min_gpus")
    filters = {
        **{name: chosen[name] for name in (*same, "ascending")},
        "accounts": _accounts(site, chosen["account"], chosen["team"]),
        "states": _states(chosen["state"]),
        "sort": None if chosen["sort"] == SORTS[0] else chosen["sort"],
        "since_s": since_s,
        "until_s": until_s,
    }
    return {name: value for name, value in filters.items() if value not in (None, (), False)}


def _accounts(site: CommandSite, account: str | None, team: str | None) -> tuple[str, ...]:
    """Those whose runs are meant, () for all. One that slurm-gpu.yaml does not name is its own team."""
    if team is None:
        return () if account is None else (account,)
    teams = {} if isinstance(site.config.team, str) else site.config.team
    accounts = {name for name, of in teams.items() if of == team} | ({team} - teams.keys())
    if account is not None:
        if account not in accounts:
            raise UsageError(
                f"--account {account}: it is of team {teams.get(account, account)}, not of {team}; "
                "leave out --team or --account"
            )
        return (account,)
    if not accounts:
        raise UsageError(f"--team {team}: no account is of that team; see `team:` in slurm-gpu.yaml")
    return tuple(sorted(accounts))


def _states(option: str | None) -> tuple[str, ...]:
    """The states of --state, in full; squeue's abbreviations are taken too."""
    full = {short: state for state, short in SHORT_STATES.items()}
    states = []
    for word in (option or "").replace(" ", "").upper().split(","):
        state = full.get(word, word)
        if state and state not in SHORT_STATES:
            raise UsageError(f"--state {word}: Slurm has no such state; it has {', '.join(SHORT_STATES)}")
        if state:
            states.append(state)
    return tuple(states)
