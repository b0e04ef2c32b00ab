"""Check that Slurm has the promised reservations, and no reservation that has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm_gpu.cli.doctor.checks.daemons.services import start_there
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.controller.reservations.reconciler import is_ours
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.reservations import ReservationClient, SlurmReservation
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.reservation import CLOCK_AHEAD, Reservation, id_of

# The time that slurm-gpuctld may take to apply a decision.
_WITHIN_S = 60


def reservations(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the reservations in Slurm agree with the table in slurm-gpudbd."""
    if at.site.config.placement.reservations is None:
        yield skipped("reservations are not enabled: slurm-gpu.yaml has no `placement: {reservations: …}`")
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
        requested = sum(not row.state.is_over for row in rows.values()) - promised
        more = f"; {counted(requested, 'request')} awaiting an operator's decision" if requested else ""
        yield ok(f"Slurm has every promised reservation: {counted(promised, 'reservation')}{more}")


def _of_row(row: Reservation, found: SlurmReservation | None, now_s: float, start: str) -> CheckResult | None:
    """Return the problem with one reservation in the table, if there is any."""
    mine = found is not None and is_ours(found, row)
    if row.state.is_promised:
        if row.error is not None and row.error.startswith(CLOCK_AHEAD):
            return warn(
                f"{row.name} of {row.user}: {row.error}",
                "run chronyc tracking on the hosts of slurm-gpuctld and slurm-gpudbd",
            )
        if row.error is not None:
            return warn(
                f"{row.name} of {row.user}: {row.error}",
                "run scontrol show reservation; if the reservation is not possible, run slurm-gpu reserve "
                "cancel "
                f"{row.id}",
            )
        decided_s = 0 if row.decided_s is None else row.decided_s
        is_due = decided_s + _WITHIN_S < now_s and row.end_s is not None and now_s + _WITHIN_S < row.end_s
        if is_due and found is not None and not mine:
            return fail(
                f"{row.name} is promised to {row.user} on {row.nodes}, but Slurm has another reservation of "
                f"this name ({', '.join(sorted(found.users))} on {found.nodes})",
                f"run scontrol delete ReservationName={row.name}, after which slurm-gpuctld creates the "
                f"promised reservation; or run slurm-gpu reserve cancel {row.id}",
            )
        if is_due and not mine:
            return fail(f"{row.name} is promised to {row.user}, but Slurm does not have it", start)
    elif mine and row.ended_s is not None and row.ended_s + _WITHIN_S < now_s:
        return warn(
            f"{row.name} is {row.state}, but still in Slurm, which does not delete it while a job uses it",
            f"run squeue --reservation={row.name}; if no job uses it, {start}",
        )
    return None


def _out_of_service(row: Reservation, out: Collection[str]) -> CheckResult | None:
    """Return a warning about promised nodes that accept no jobs."""
    lost = sorted(set(expand(row.nodes or "")).intersection(out)) if row.state.is_promised else []
    if not lost:
        return None
    verb = "is" if len(lost) == 1 else "are"
    return warn(
        f"{row.name} is promised to {row.user}, but {', '.join(lost)} {verb} out of service",
        "slurm-gpuctld replaces a node with a free one after ten minutes out of service. If no node is "
        f"free, return the node to service (see sinfo -R), or run slurm-gpu reserve cancel {row.id} and "
        "approve another request",
    )


def _foreign(there: Mapping[str, SlurmReservation], rows: Mapping[int, Reservation]) -> Iterator[CheckResult]:
    """Yield a warning for each reservation in Slurm that has our prefix, but is not ours."""
    for name, found in there.items():
        number = id_of(name)
        if number is None or (number in rows and is_ours(found, rows[number])):
            continue
        if number not in rows or not rows[number].state.is_promised:
            yield warn(
                f"the reservation {name} in Slurm is named like slurm-gpu's reservations, but is not one of "
                "them; slurm-gpu does not change it",
                f"if the reservation is not needed, run scontrol delete ReservationName={name}",
            )
