"""Check that jobs can be kept in zones, and that slurm-gpuctld ends their waits."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import start
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, ok, skipped, warn
from slurm_gpu.controller.placement.zone_wait import written_zones
from slurm_gpu.controller.snapshot.zone_table import zone_nodes
from slurm_gpu.errors import UsageError
from slurm_gpu.placement.zone_constraint import ZoneConstraint, taken_apart
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.text.units import counted

_DAEMON = "slurm-gpuctld"


def zones(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that exactly the nodes of a zone have its feature, and that waits for zones are ended."""
    if not at.site.config.zones:
        yield skipped("slurm-gpu.yaml names no zones")
        return
    try:
        found = zone_nodes(at.site.config.zones, at.nodes)
    except ValueError as error:
        raise UsageError(f"slurm-gpu.yaml: zones: {error}") from None
    fine = [zone.name for zone in found if zone.error is None]
    for zone in found:
        if zone.error is not None and zone.remedy is not None:
            yield warn(f"zone {zone.name}: {zone.error}, so no job is kept in it", zone.remedy)
    if fine:
        mode = at.site.config.placement.mode
        yield ok(
            f"jobs can be kept in {len(fine)} of {counted(len(found), 'zone')}; placement's mode is {mode}"
        )
    yield from _unattended(at)


def _unattended(at: DoctorContext) -> Iterator[CheckResult]:
    if not at.is_controller or running(_DAEMON):
        return
    waiting: dict[ZoneConstraint, list[int]] = {}
    for job in at.site.slurm.jobs():
        written = _ours(job) if job.state == "PENDING" else None
        if written is not None and not at.site.config.zones.keys().isdisjoint(written.zones):
            waiting.setdefault(written, []).append(job.job_id)
    for written, jobs in waiting.items():
        ids = ",".join(map(str, jobs))
        yield warn(
            f"{counted(len(jobs), 'job')} may wait for one zone indefinitely, because {_DAEMON} is not "
            "running on this host",
            f"{start(at, _DAEMON)}; or run scontrol update JobId={ids} Features='{written.own}'",
        )


def _ours(job: QueuedJob) -> ZoneConstraint | None:
    written = taken_apart(job.features)
    if written is None or frozenset(written.zones) != written_zones(job.admin_comment):
        return None
    return written
