"""`slurm-gpu quota`: show the use and the limits of a user."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.policy.limit_amount import limit_amount
from slurm_gpu.cli.policy.usage import read_active, read_use
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.controller.queue.lending import LendingLine, lending_of
from slurm_gpu.controller.reporting.quota import QuotaLine, quota_of
from slurm_gpu.policy.language.job_changes import options_text
from slurm_gpu.slurm.submission import read_user_associations
from slurm_gpu.text.cells import GAP, time_of_day
from slurm_gpu.text.units import format_duration, format_mgpu

COLUMNS = ("rule", "limit on", "for", "used", "limit", "left", "")
LENDING_COLUMNS = ("owner", "owns", "uses itself", "lends", "borrows", "back within")
# Notes on rules that do not refuse jobs.
_MODE = {"observe": "observed only", "advise": "advice only", "fit": "longer jobs are shortened"}
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@click.command()
@click.option("--user", metavar="NAME", help="Show this user. [default: you]")
@json_option
@with_site
def quota(site: CommandSite, user: str | None, as_json: bool) -> None:
    """Show your usage and each limit of the active policy that applies to you.

    Run this command on a host whose Slurm configuration directory contains job_submit.lua: a host of
    slurmctld, or one that shares the directory. A dash means that the limit applies to single jobs, or that
    the usage is not known on this host.
    """
    uid, name = uid_and_name(user)
    active = read_active(site)
    policy, (snapshot, by_rule) = active.policy, read_use(site, active)
    places = read_user_associations(name, site.run)
    lines = quota_of(policy, snapshot, name, uid, places, site.wall(), by_rule)
    lending = lending_of(policy.lending, snapshot.usage) if policy.lending is not None else []
    assumed = f"limits of accounts and QOS that {name} may not use are also listed"
    notes = list(active.caveats(uid, None if places.from_slurmdbd else assumed))
    if as_json:
        print_json(
            {
                "user": name,
                "as_of_s": snapshot.as_of_s,
                "from": "queue" if active.snapshot is None else "snapshot",
                "limits": [line.to_json() for line in lines],
                "lending": [_owner_json(line) for line in lending],
                "notes": notes,
            }
        )
        return
    for note in notes:
        remark(f"note: {note}")
    _print_limits(lines, name, site)
    if lending:
        if lines:
            click.echo()
        print_table(LENDING_COLUMNS, map(_owner_row, lending), right=LENDING_COLUMNS[1:], whole=("owner",))


def _print_limits(lines: Sequence[QuotaLine], name: str, site: CommandSite) -> None:
    if not lines:
        remark(f"no limit applies to {name}'s jobs")
        return
    zone = ZoneInfo(site.config.timezone if site.config_path.exists() else "UTC")
    rows = [_row(line, name, zone) for line in lines]
    print_table(COLUMNS, rows, right=COLUMNS[3:6], whole=("rule",), spare=("for", "used"))


def _row(line: QuotaLine, user: str, zone: ZoneInfo) -> Sequence[str]:
    kind, rule = line.kind, line.rule
    return (
        rule.id,
        line.on,
        _whose(line, user),
        GAP if line.used is None else limit_amount(kind, line.used),
        limit_amount(kind, line.limit),
        GAP if line.left is None else limit_amount(kind, line.left),
        "; ".join(_notes(line, zone)),
    )


def _whose(line: QuotaLine, user: str) -> str:
    if line.rule.per == "account":
        return f"account {line.account}" if line.account is not None else "each account"
    return user if line.rule.per == "user" else line.rule.group.title


def _owner_row(line: LendingLine) -> Sequence[str]:
    amounts = (line.owner.mgpu, line.own, line.lent, line.borrowed)
    return (line.owner.name, *map(format_mgpu, amounts), format_duration(line.owner.return_within_s))


def _owner_json(line: LendingLine) -> dict[str, Any]:
    return {
        "owner": line.owner.name,
        "owned": line.owner.mgpu / 1000,
        "own": line.own / 1000,
        "lent": line.lent / 1000,
        "borrowed": line.borrowed / 1000,
        "return_within_s": line.owner.return_within_s,
        "qos": line.owner.qos,
        "lend_in": line.owner.lend_in,
    }


def _notes(line: QuotaLine, zone: ZoneInfo) -> Iterator[str]:
    rule = line.rule
    if line.carried:
        yield f"{limit_amount(line.kind, line.carried)} carried over"
    if rule.over_limit is not None and rule.mode == "fit":
        yield f"jobs over it get {options_text(rule.over_limit)}"
    elif rule.mode != "enforce":
        yield _MODE[rule.mode]
    if rule.jobs is not None:
        yield f"jobs {rule.jobs['text']}"
    if rule.kind is not None:
        yield f"{rule.kind} jobs"
    if rule.when is not None:
        days = [day for index, day in enumerate(_DAYS, 1) if rule.when["days"][index]]
        from_min, to_min = rule.when["from_min"], rule.when["to_min"]
        span = f"{time_of_day(from_min)}-{time_of_day(to_min - 1440 if to_min > 1440 else to_min)}"
        yield f"{'may run ' if rule.when.get('run') else ''}{','.join(days)} {span}"
    if line.until_s is not None:
        last_day = dt.datetime.fromtimestamp(line.until_s - 1, zone).date()
        yield f"your exception, until {last_day}"
    elif line.exception is not None:
        yield "your exception"
