"""Read the facts that decide whether Slurm would accept a job, without submitting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.explain.named_reservation import KnownReservations
from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.policy.explain.slurm_refusals import RunningSlurm
from slurm_gpu.policy.explain.submitter import read_submitter
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.reservations import ReservationClient
from slurm_gpu.slurm.submission import (
    Partition,
    UserAssociations,
    UserDefaults,
    read_licenses,
    read_user_associations,
)


def read_cluster(
    site: CommandSite,
    settings: SlurmSettings,
    nodes: Sequence[SlurmNode],
    partitions: Sequence[Partition],
    request: SbatchRequest,
    user: str,
    defaults: UserDefaults,
    policy_qos: object = None,
) -> RunningSlurm:
    """Read the facts that decide whether Slurm accepts a request by `user`, in the QOS set by the policy.

    slurmdbd is queried only if it is available.
    """
    options = request.options
    names_place = not options.keys().isdisjoint(("account", "qos"))
    places = read_user_associations(user, site.run) if names_place else UserAssociations()
    store = site.limits if defaults.from_slurmdbd and has_slurmdbd(settings) else None
    qos = policy_qos or options.get("qos") or (None if store is None else defaults.qos or "normal")
    account = options.get("account") or defaults.account
    submitter = read_submitter(store, settings.cluster, user, account, str(qos) if qos else None)
    return RunningSlurm(
        settings,
        nodes,
        partitions,
        user,
        places,
        submitter,
        _reservations(site, request),
        _licenses(site, request),
    )


def _reservations(site: CommandSite, request: SbatchRequest) -> KnownReservations | None:
    """Return Slurm's reservations; None if the request names none or they cannot be read."""
    if "reservation" not in request.options:
        return None
    try:
        return KnownReservations(ReservationClient(site.run).all(), site.wall())
    except SlurmError:
        return None


def _licenses(site: CommandSite, request: SbatchRequest) -> Mapping[str, int] | None:
    """Return the numbers of Slurm's licences; None if the request names none or they cannot be read."""
    if "licenses" not in request.options:
        return None
    try:
        return read_licenses(site.run)
    except SlurmError:
        return None
