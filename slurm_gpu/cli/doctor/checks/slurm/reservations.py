"""Whether Slurm has the reservations that were promised, and none that is over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm_gpu.cli.doctor.checks.daemons.services import start_there
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, warn
from slurm_gpu.controller.reservations.reconciler import is_ours
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.reservations import ReservationClient, SlurmReservation
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.reservation import CLOCK_AHEAD, Reservation, id_of

_WITHIN_S = 60
"""So long it may take slurm-gpuctld to do what was decided."""


def reservations(at: DoctorContext) -> Iterator[CheckResult]:
    """Slurm and the table in slurm-gpudbd agree."""
    if at.site.config.placement.reservations is None:
        yield ok("there are none here: slurm-gpu.yaml has no `placement: {reservations: …}`")
        return
    out = {node.name for node in at.nodes if out_of_service(node)}
    there = {one.name: one for one in ReservationClient(at.site.run).all()}
    ids = [number for name in there if (number := id_of(name)) is not None]
    start = start_there(at, "slurm-gpuctld", "on the host of slurmctld")
    with at.site.database() as database:
        rows = {row.id: row for row in database.reservations(ids=ids)}
    now_s = at.site.wall()
    found = [
        *(finding for row in rows.values() if (finding := _of_row(row, there.get(row.name), now_s, start))),
        *(finding for row in rows.values() if (finding := _out_of_service(row, out))),
        *_foreign(there, rows),
    ]
    yield from found
    if not found:
        promised = sum(row.state.is_promised for row in rows.values())
        asked = sum(not row.state.is_over for row in rows.values()) - promised
        more = f"; {counted(asked, 'request')} for an operator to decide" if asked else ""
        yield ok(f"Slurm has what is promised: {counted(promised, 'reservation')}{more}")


def _of_row(row: Reservation, found: SlurmReservation | None, now_s: float, start: str) -> CheckResult | None:
    """Return the problem of one reservation in the table, if any."""
    mine = found is not None and is_ours(found, row)
    if row.state.is_promised:
        if row.error is not None and row.error.startswith(CLOCK_AHEAD):
            return warn(
                f"{row.name} of {row.user}: {row.error}",
                "chronyc tracking, on the hosts of slurm-gpuctld and of slurm-gpudbd",
            )
        if row.error is not None:
            return warn(
                f"{row.name} of {row.user}: {row.error}",
                f"scontrol show reservation; where it cannot be, slurm-gpu reserve cancel {row.id}",
            )
        decided_s = 0 if row.decided_s is None else row.decided_s
        is_due = decided_s + _WITHIN_S < now_s and row.end_s is not None and now_s + _WITHIN_S < row.end_s
        if is_due and found is not None and not mine:
            return fail(
                f"{row.name} is promised to {row.user} on {row.nodes}, and Slurm has another one called so "
                f"({', '.join(sorted(found.users))} on {found.nodes})",
                f"scontrol delete ReservationName={row.name}, and slurm-gpuctld makes the promised one; or "
                f"slurm-gpu reserve cancel {row.id}",
            )
        if is_due and not mine:
            return fail(f"{row.name} is promised to {row.user}, and Slurm does not have it", start)
    elif mine and row.ended_s is not None and row.ended_s + _WITHIN_S < now_s:
        return warn(
            f"{row.name} is {row.state}, and still in Slurm, which does not delete it while a job is in it",
            f"squeue --reservation={row.name}; without a job: {start}",
        )
    return None


def _out_of_service(row: Reservation, out: Collection[str]) -> CheckResult | None:
    """Promised nodes that take no jobs."""
    lost = sorted(set(expand(row.nodes or "")).intersection(out)) if row.state.is_promised else []
    if not lost:
        return None
    verb = "is" if len(lost) == 1 else "are"
    return warn(
        f"{row.name} is promised to {row.user}, and {', '.join(lost)} {verb} out of service",
        "slurm-gpuctld takes others that are free, ten minutes after a node went out of service; where there "
        f"are none, bring it back (sinfo -R), or: slurm-gpu reserve cancel {row.id}, and approve another",
    )


def _foreign(there: Mapping[str, SlurmReservation], rows: Mapping[int, Reservation]) -> Iterator[CheckResult]:
    """Yield reservations in Slurm with our prefix that are not ours."""
    for name, found in there.items():
        number = id_of(name)
        if number is None or (number in rows and is_ours(found, rows[number])):
            continue
        if number not in rows or not rows[number].state.is_promised:
            yield warn(
                f"{name} in Slurm has a name like slurm-gpu's, but is not one of them; it is unchanged",
                f"if it is not needed: scontrol delete ReservationName={name}",
            )
