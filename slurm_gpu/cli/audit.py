"""`slurm-gpu audit`: list changes that slurm-gpu made to the cluster, and jobs that a rule refused."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import DatabaseError, UsageError
from slurm_gpu.simulate.request import GPU_MGPU
from slurm_gpu.text.cells import GAP, count, moment, text
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.reservation import MOST_IDS, Reservation
from slurm_gpu.wire.answers.runs import AuditEvent, Decision

if TYPE_CHECKING:  # httpx is slow to import
    from slurm_gpu.client.database_client import DatabaseClient

_MOST = 1000
_COLUMNS = ("when", "action", "subject", "before", "after", "why", "reported by")
_REFUSED_COLUMNS = ("when", "user", "account", "GPUs", "operation", "rules", "reason given")
_RESERVATION = re.compile(r"sg_(\d{1,18})")


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=20,
    show_default=True,
    metavar="N",
    help="Print the latest N entries.",
)
@click.option(
    "--action",
    metavar="TEXT",
    help="Search the latest 1000 actions for those that begin with TEXT, such as urgent.",
)
@click.option("--refused", metavar="RULE", help="List jobs that this rule refused, instead of actions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the evidence of each action.")
@with_site
def audit(site: CommandSite, limit: int, action: str | None, refused: str | None, as_json: bool) -> None:
    """List changes that slurm-gpu made to the cluster, the latest last.

    Actions include starts of urgent jobs, and changes to limits, node weights and reservations. Only
    operators, root and SlurmUser may run this command.
    """
    if refused is not None and action is not None:
        raise UsageError("--action and --refused are mutually exclusive")
    zone = ZoneInfo(site.config.timezone)
    with site.database() as database:
        if refused is not None:
            decisions = database.refusals(refused, min(limit + 1, _MOST))
            _print_refused(decisions[:limit][::-1], refused, zone, as_json=as_json)
            _remark_on_more(len(decisions), limit, len(decisions))
            return
        found = database.acts(_MOST if action is not None else min(limit + 1, _MOST))
        chosen = [one for one in found if action is None or one.action.startswith(action)]
        acts = chosen[:limit][::-1]
        owners = {} if as_json else _owners(database, acts)
    if as_json:
        print_json({"audit": to_json(acts)})
    elif not acts:
        remark("no such action is recorded" if action is not None else "no changes are recorded")
    else:
        _print_acts(acts, owners, zone)
    _remark_on_more(len(chosen), limit, len(found))


def _print_acts(acts: Sequence[AuditEvent], owners: Mapping[str, str], zone: ZoneInfo) -> None:
    rows = [
        (
            moment(one.at_s, zone),
            text(one.action),
            text(one.subject + owners.get(one.subject, "")),
            text(one.old),
            text(one.new),
            text(one.why),
            text(one.reported_by),
        )
        for one in acts
    ]
    print_table(_COLUMNS, rows, whole=("when",), spare=("reported by", "before", "after"))


def _owners(database: DatabaseClient, acts: Sequence[AuditEvent]) -> dict[str, str]:
    """Map the name of each reservation in slurm-gpudbd to " of USER"."""
    numbers = sorted({int(match[1]) for one in acts if (match := _RESERVATION.fullmatch(one.subject))})
    known: list[Reservation] = []
    try:
        for at in range(0, len(numbers), MOST_IDS):
            known += database.reservations(ids=numbers[at : at + MOST_IDS])
    except DatabaseError:
        return {}  # slurm-gpudbd 0.1 has no reservations
    return {one.name: f" of {one.user}" for one in known}


def _print_refused(decisions: Sequence[Decision], rule: str, zone: ZoneInfo, *, as_json: bool) -> None:
    if as_json:
        print_json({"refused": to_json(decisions)})
        return
    if not decisions:
        remark(f"no recorded job was refused by rule {rule}")
        return
    rows = [
        (
            moment(one.at_s, zone),
            _user(one.uid),
            text(one.job.get("account")),
            _gpus(one),
            text(one.operation),
            text(_rules(one)),
            text(one.job.get("urgent")),
        )
        for one in decisions
    ]
    print_table(_REFUSED_COLUMNS, rows, right=("GPUs",), whole=("when",), spare=("operation", "account"))


def _user(uid: int) -> str:
    try:
        return text(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"uid {uid}"


def _gpus(one: Decision) -> str:
    """Format the GPUs of a job; return a dash for a number that this version cannot parse."""
    mgpu = one.job.get("mgpu", "")
    return count(int(mgpu) / GPU_MGPU) if mgpu.isascii() and mgpu.isdigit() else GAP


def _rules(one: Decision) -> str | None:
    """Return the rules that refused the job."""
    objections = (item.split(":") for item in (one.rules or "").split(","))
    return ", ".join(dict.fromkeys(parts[0] for parts in objections if parts[-1] == "enforce")) or None


def _remark_on_more(n_chosen: int, limit: int, n_found: int) -> None:
    if n_chosen > limit:
        remark(f"only the latest {limit} are shown; --limit {min(10 * limit, _MOST)} shows more")
    elif n_found == _MOST:
        remark(f"only the latest {_MOST} were searched")
