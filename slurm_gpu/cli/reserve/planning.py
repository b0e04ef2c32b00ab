"""Plan reservations with the nodes, jobs and reservations in Slurm."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.config.site import Reservations
from slurm_gpu.controller.reservations.windows import nodes_needed, nodes_with, plan
from slurm_gpu.errors import UsageError
from slurm_gpu.placement.calendar import CalendarWindow
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.reservations import ReservationClient, SlurmReservation
from slurm_gpu.slurm.submission import read_partitions, read_user_defaults
from slurm_gpu.text.units import counted, format_duration
from slurm_gpu.wire.answers.reservation import Reservation


class PlanningState:
    """The current nodes, jobs and reservations."""

    def __init__(self, site: CommandSite, settings: Reservations) -> None:
        self._site, self._settings = site, settings

    @functools.cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """Return all nodes in Slurm."""
        return self._site.slurm.nodes()

    @functools.cached_property
    def in_slurm(self) -> Sequence[SlurmReservation]:
        """Return all reservations in Slurm."""
        return ReservationClient(self._site.run).all()

    def nodes_for(self, gpus: int, gpu_type: str | None, partition: str) -> int:
        """Return the minimum number of nodes that have the GPUs; raise UsageError if no node has the type."""
        found = nodes_with(self.nodes, partition, gpu_type)
        if not found:
            kinds = sorted({kind for node in self.nodes for kind in node.gpus if kind and node.gpus[kind]})
            partitions = sorted({name for node in self.nodes if node.n_gpus for name in node.partitions})
            kind = f"{gpu_type} GPUs" if gpu_type else "GPUs"
            raise UsageError(
                f"partition {partition} has no node in service with {kind}; Slurm has "
                f"{', '.join(kinds) or 'GPUs without a type'} in {', '.join(partitions) or 'no partition'}"
            )
        return nodes_needed(found, gpus, gpu_type)

    def plan(
        self,
        one: Reservation,
        rows: Iterable[Reservation],
        not_before_s: int | None = None,
        only: Collection[str] | None = None,
    ) -> CalendarWindow:
        """Return the first window for a request; raise UsageError if jobs and reservations leave none."""
        if not_before_s is not None:
            one = replace(one, earliest_s=max(one.earliest_s, not_before_s))
        site, now_s = self._site, self._site.wall()
        latest_s = int(now_s + self._settings.horizon_s)
        if one.latest_s is not None:
            latest_s = min(latest_s, one.latest_s)
        timezone = ZoneInfo(site.config.timezone)
        found = plan(
            one,
            self.nodes,
            site.slurm.jobs(),
            self.in_slurm,
            rows,
            site.config.zones,
            now_s,
            latest_s,
            self._settings.release_unused_s,
            timezone,
            only,
        )
        if found is None:
            by = dt.datetime.fromtimestamp(latest_s, timezone)
            raise UsageError(
                f"{counted(one.n_nodes, 'node')} cannot be reserved together for "
                f"{format_duration(one.duration_s)} by {by:%a %Y-%m-%d %H:%M}: request fewer GPUs, less "
                "time or a later start"
            )
        return found


def default_partition(site: CommandSite) -> str:
    """Return Slurm's default partition; raise UsageError if there is none."""
    name = next((one.name for one in read_partitions(site.run) if one.is_default), None)
    if name is None:
        raise UsageError("Slurm has no default partition: specify one with --partition")
    return name


def default_account(site: CommandSite, user: str) -> str:
    """Return the default account of the user; raise UsageError if Slurm has none."""
    account = read_user_defaults(user, None, site.run).account
    if account is None:
        raise UsageError(f"Slurm has no default account of {user}: specify one with --account")
    return account
