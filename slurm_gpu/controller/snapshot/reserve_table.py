"""Publish to job_submit.lua the job size that requires a reservation, and the approved reservations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm_gpu.config.site import Placement
from slurm_gpu.controller.snapshot.encoding import encode
from slurm_gpu.wire.answers.reservation import Reservation


@dataclass(frozen=True, slots=True)
class ReserveTable:
    """The lines of a snapshot about reservations (docs/contracts.md, section 4)."""

    mode: str
    mgpu: int | None
    """The job size from which a reservation is required; None if no job requires a reservation."""
    promised: tuple[Reservation, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield a line for the rule, and a line for each approved reservation."""
        yield f"reserve {self.mode} mgpu={'-' if self.mgpu is None else self.mgpu}"
        for row in self.promised:
            names = " ".join(map(encode, (row.user, row.account, row.partition)))
            nodes = encode(row.nodes or "")
            yield f"reserved {names} {row.gpus * 1000} {row.name} {row.start_s} {row.end_s} {nodes}"


def reserve_table(placement: Placement, rows: Iterable[Reservation] | None) -> ReserveTable | None:
    """Return the table; None if there are no reservations or they are unknown."""
    settings = placement.reservations
    if settings is None or rows is None:
        return None
    mgpu = None if settings.required_gpus is None else settings.required_gpus * 1000
    promised = sorted((row for row in rows if row.state.is_promised), key=lambda row: row.id)
    return ReserveTable(placement.mode, mgpu, tuple(promised)) if promised or mgpu is not None else None
