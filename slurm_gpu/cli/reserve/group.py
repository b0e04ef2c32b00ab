"""`slurm-gpu reserve`: request, approve, cancel and list reservations of whole nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import duration_value, json_option
from slurm_gpu.cli.output import check_format, print_csv, print_json, remark
from slurm_gpu.cli.reserve.calendar import Calendar, day_and_time, late, print_calendar, print_past
from slurm_gpu.cli.reserve.planning import PlanningState, default_account, default_partition
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.times import parse_future
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.config.site import Reservations
from slurm_gpu.controller.reservations.reconciler import is_ours
from slurm_gpu.controller.reservations.windows import sites_own
from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.placement.promises import summarize
from slurm_gpu.slurm.reservations import ReservationClient, SlurmReservation
from slurm_gpu.text.hostlist import compress, expand
from slurm_gpu.text.units import counted, format_duration, format_slurm_time
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState

_PAST = 30
_NONE_HERE = (
    "reservations are not enabled. To enable them, an admin adds `placement: {reservations: {}}` to "
    "slurm-gpu.yaml, and restarts slurm-gpudbd and slurm-gpuctld"
)


def _at_least_a_minute(context: click.Context, parameter: click.Parameter, text: str) -> int:
    seconds = duration_value(context, parameter, text)
    if seconds < 60:
        raise click.BadParameter(f"{text!r} is less than a minute; use a duration such as 36h or 3d")
    return math.ceil(seconds)


def _not_empty(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter("the reason must not be empty")
    return text


@click.group()
def reserve() -> None:
    """Reserve whole nodes for a large training job at a promised time.

    A user requests a reservation, an operator approves it, and slurm-gpuctld creates it in Slurm. Jobs of the
    user enter the reservation without further options. An unused reservation is released.
    """


@reserve.command(short_help="Request a reservation.")
@click.option("--gpus", type=click.IntRange(1), required=True, metavar="N", help="Total number of GPUs.")
@click.option(
    "--time",
    "duration_s",
    required=True,
    callback=_at_least_a_minute,
    metavar="DURATION",
    help="Length of the reservation, such as 36h, 3d or 2-12:00:00.",
)
@click.option(
    "--why", required=True, callback=_not_empty, metavar="TEXT", help="Reason, for the operators who decide."
)
@click.option(
    "--nodes", type=click.IntRange(1), metavar="N", help="Number of nodes. [default: as few as possible]"
)
@click.option("--gpu-type", metavar="NAME", help="GPU type. [default: any]")
@click.option("--partition", metavar="NAME", help="Partition. [default: Slurm's default]")
@click.option("--account", metavar="NAME", help="Account. [default: your default account]")
@click.option(
    "--earliest", metavar="TIME", help="Earliest start: 2026-12-01, 2026-12-01T18:00, or 2d from now."
)
@click.option("--latest", metavar="TIME", help="Latest useful start.")
@click.option("--user", metavar="NAME", help="Make the request for this user, as an operator.")
@with_site
def request(
    site: CommandSite,
    gpus: int,
    duration_s: int,
    why: str,
    nodes: int | None,
    gpu_type: str | None,
    partition: str | None,
    account: str | None,
    earliest: str | None,
    latest: str | None,
    user: str | None,
) -> None:
    """Request whole nodes for a period. Nothing is promised until an operator approves the request.

    The command prints when the reservation would begin if it were approved now. Your job must use the same
    account and partition, and a time limit of at most --time: when the reservation ends, Slurm ends the jobs
    in it.
    """
    settings, zone = _settings(site), ZoneInfo(site.config.timezone)
    name = uid_and_name(user)[1]
    cluster = PlanningState(site, settings)
    earliest_s = parse_future("--earliest", earliest, zone, site.wall()) or int(site.wall())
    latest_s = parse_future("--latest", latest, zone, site.wall())
    if latest_s is not None and latest_s < earliest_s:
        raise UsageError(
            f"--latest {latest} ({day_and_time(latest_s, zone)}) must not be before the earliest start, "
            f"{day_and_time(earliest_s, zone)}"
        )
    wanted_in = partition if partition is not None else default_partition(site)
    asked = Reservation(
        id=0,
        cluster=site.config.cluster,
        user=name,
        partition=wanted_in,
        gpus=gpus,
        gpu_type=gpu_type,
        account=account if account is not None else default_account(site, name),
        n_nodes=cluster.nodes_for(gpus, gpu_type, wanted_in) if nodes is None else nodes,
        duration_s=duration_s,
        why=why,
        state=ReservationState.REQUESTED,
        requested_s=int(site.wall()),
        earliest_s=earliest_s,
        latest_s=latest_s,
    )
    with site.database() as database:
        window = cluster.plan(asked, database.reservations())
        found = database.request_reservation(
            user=user,
            account=asked.account,
            partition=asked.partition,
            gpus=gpus,
            gpu_type=gpu_type,
            n_nodes=asked.n_nodes,
            duration_s=duration_s,
            earliest_s=asked.earliest_s,
            latest_s=asked.latest_s,
            why=why,
        )
    click.echo(f"Request {found.id}: {_what(found)}, account {found.account}. An operator decides.")
    click.echo(
        f"If approved now, the reservation begins {day_and_time(window.start_s, zone)} on "
        f"{compress(window.nodes)}."
    )


@reserve.command(short_help="Approve a request (operators only).")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@click.option("--start", metavar="TIME", help="Earliest start. [default: as soon as possible]")
@click.option("--nodes", metavar="NODES", help="Use only these nodes, such as n[1-4].")
@with_site
def approve(site: CommandSite, number: int, start: str | None, nodes: str | None) -> None:
    """Approve a request for the first window in which enough nodes are free at the same time.

    The window depends on the time limits of running jobs and on other reservations. After the approval, the
    start cannot be moved to a later time. Pending jobs that would have used these nodes wait longer.
    """
    settings, zone = _settings(site), ZoneInfo(site.config.timezone)
    only = None if nodes is None else _hosts(nodes)
    with site.database() as database:
        rows = database.reservations(ids=[number])
        one = next((row for row in rows if row.id == number), None)
        if one is None:
            raise UsageError(f"reservation {number} does not exist; run `slurm-gpu reserve list`")
        if one.state is not ReservationState.REQUESTED:
            raise UsageError(f"reservation {number} is {one.state}: only requests can be approved")
        not_before_s = parse_future("--start", start, zone, site.wall())
        window = PlanningState(site, settings).plan(one, rows, not_before_s, only)
        promised = database.decide_reservation(
            number, "approve", start_s=window.start_s, end_s=window.end_s, nodes=compress(window.nodes)
        )
    click.echo(
        f"Reservation {number} begins {day_and_time(promised.start_s, zone)} on {promised.nodes}, for "
        f"{_long(promised)}; its name in Slurm is {promised.name}."
    )
    click.echo(f"{promised.user}'s jobs enter it without further options:")
    click.echo(f"  {_command(promised)}")


@reserve.command(short_help="Deny a request, as an operator.")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@click.option("--why", required=True, callback=_not_empty, metavar="TEXT", help="Reason, for the user.")
@with_site
def deny(site: CommandSite, number: int, why: str) -> None:
    """Deny a request, with a reason for the user."""
    with site.database() as database:
        database.decide_reservation(number, "deny", why=why)
    click.echo(f"Request {number} is denied.")


@reserve.command(short_help="Cancel a request or reservation.")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@click.option("--why", metavar="TEXT", help="Reason, for other users.")
@with_site
def cancel(site: CommandSite, number: int, why: str | None) -> None:
    """Cancel one of your requests or reservations; running jobs continue.

    Operators may cancel the requests and reservations of all users.
    """
    with site.database() as database:
        one = database.decide_reservation(number, "cancel", why=why)
    click.echo(f"Reservation {number} is cancelled{'' if one.start_s is None else _then(site, one)}.")


def _then(site: CommandSite, one: Reservation) -> str:
    """State when the nodes become free for other users."""
    try:
        found = next((it for it in ReservationClient(site.run).all() if it.name == one.name), None)
    except SlurmError as error:
        return f"; its state in Slurm is unknown: {error}"
    if found is None:
        return "; Slurm has no such reservation"
    if not is_ours(found, one):
        return (
            f"; {one.name} in Slurm is on {found.nodes or 'no nodes'} for "
            f"{', '.join(sorted(found.users)) or 'no user'}, which was not approved, so slurm-gpu does not "
            f"delete it: run `scontrol delete ReservationName={one.name}` if it is not needed"
        )
    return "; its nodes become free for other users within a minute after its last job ends"


@reserve.command("list", short_help="Show the calendar.")
@click.option("--past", is_flag=True, help="Show past reservations, and how late they began.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    metavar="N",
    help=f"With --past: print the latest N. [default: {_PAST}]",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with the keys as columns.")
@with_site
def list_reservations(site: CommandSite, past: bool, limit: int | None, as_json: bool, as_csv: bool) -> None:
    """Show reservations and requests in a calendar by day, with Slurm's other reservations."""
    check_format(as_json=as_json, as_csv=as_csv)
    if limit is not None and not past:
        raise UsageError("--limit applies only to past reservations: add --past")
    zone = ZoneInfo(site.config.timezone)
    with site.database() as database:
        rows = database.reservations(past=(_PAST if limit is None else limit) if past else 0)
    over = [row for row in rows if row.state.is_over]
    shown = over if past else [row for row in rows if not row.state.is_over]
    lateness = {row.id: late(row) for row in shown}
    promised = [row for row in over if row.start_s is not None and row.state in _USED]
    made = [row for row in promised if row.was_made]
    promises = summarize([lateness[row.id] for row in made], len(promised) - len(made))
    if as_csv:
        columns = [*(f.name for f in fields(Reservation)), "late_s"]
        print_csv(columns, [{**to_json(row), "late_s": lateness[row.id]} for row in shown])
        return
    others = () if past else _others(site, rows)
    if as_json:
        print_json(
            {
                "reservations": [{**to_json(row), "late_s": lateness[row.id]} for row in shown],
                "others": [
                    {"name": one.name, "start_s": one.start_s, "end_s": one.end_s, "nodes": one.nodes}
                    for one in others
                ],
                "promises": {
                    "n": promises.n,
                    "unused": promises.unused,
                    "median_late_s": promises.median_s,
                    "worst_late_s": promises.worst_s,
                    "not_made": promises.not_made,
                }
                if past
                else None,
            }
        )
    elif past:
        print_past(over, promises, zone)
    elif not shown and not others and site.config.placement.reservations is None:
        click.echo(f"Nothing is reserved: {_NONE_HERE}")
    else:
        print_calendar(Calendar(shown, others, site.wall(), zone))


# States in which it is known whether the promise was kept; it is unknown for cancelled reservations.
_USED = (ReservationState.ENDED, ReservationState.RELEASED)


def _others(site: CommandSite, rows: Sequence[Reservation]) -> Sequence[SlurmReservation]:
    try:
        return [one for one in sites_own(ReservationClient(site.run).all(), rows) if one.nodes]
    except SlurmError as error:
        remark(f"Slurm's other reservations are not shown: {error}")
        return ()


def _settings(site: CommandSite) -> Reservations:
    settings = site.config.placement.reservations
    if settings is None:
        raise UsageError(_NONE_HERE)
    return settings


def _hosts(nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except ValueError as error:
        raise UsageError(f"--nodes: {error}") from None


def _what(one: Reservation) -> str:
    kind = f"{one.gpu_type} GPU" if one.gpu_type else "GPU"
    return f"{counted(one.gpus, kind)} on {counted(one.n_nodes, 'whole node')} for {_long(one)}"


def _long(one: Reservation) -> str:
    return format_duration(one.duration_s)


def _command(one: Reservation) -> str:
    kind = f"{one.gpu_type}:" if one.gpu_type else ""
    # If the GPUs cannot be split evenly, the same number per node would exceed the request.
    per_node, rest = divmod(one.gpus, one.n_nodes)
    gpus = f"--gpus={kind}{one.gpus}" if rest else f"--gpus-per-node={kind}{per_node}"
    return (
        f"sbatch --account={one.account} --partition={one.partition} --nodes={one.n_nodes} "
        f"{gpus} --time={format_slurm_time(one.duration_s)} …"
    )
