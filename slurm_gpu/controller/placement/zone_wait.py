"""Manage pending jobs that job_submit.lua restricts to zones: their maximum wait and their order of zones.

Time counts only while a job waits for nodes according to Slurm (for example, with the reason Resources), not
while other jobs, limits or a dependency delay it. After `zone_wait`, the job's own constraint is restored
verbatim, and the job keeps its position in the queue. The constraint is restored at once if it has become
invalid or zones are no longer enforced.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.run_file import write_run_file
from slurm_gpu.controller.snapshot.zone_table import ZoneTable
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.placement.zone_constraint import ZoneConstraint, joined, taken_apart
from slurm_gpu.placement.zones import reordered, scale_of
from slurm_gpu.slurm.job_changes import ConstrainedJob, ConstraintClient
from slurm_gpu.slurm.queue import JobPhase
from slurm_gpu.text.units import few

log = logging.getLogger("slurm-gpuctld")

FILE_NAME = "zonewait.json"
# Interval at which jobs waiting for a zone are checked.
EVERY_S = 20.0
# Maximum time between checks that counts as waiting. If more time has passed, slurmctld was down and could
# not start jobs.
_MOST_BETWEEN_S = 60.0
# A job's alternatives are reordered if another zone is better by at least this number of points.
MARGIN = 100

_ZONES = re.compile(r"slurm-gpu/1 t=\w+(?: [kwqlcr]=\S+)* [oz]=(\S+)")
_FOR_NODES = ("Resources", "ReqNodeNotAvail", "Nodes_required_for_job", "Nodes required for job", "NodeDown")
_WRONG = "BadConstraints"


@dataclass(frozen=True, slots=True)
class ConstraintChange:
    """A new constraint for a job, and the reason for it."""

    features: str
    why: str


def written_zones(admin_comment: str) -> frozenset[str]:
    """Return the zones or features that job_submit.lua wrote, according to the AdminComment."""
    match = _ZONES.match(admin_comment)
    return frozenset(part.partition(":")[0] for part in match[1].split(",")) if match else frozenset()


def ours(job: ConstrainedJob, zones: frozenset[str]) -> ZoneConstraint | None:
    """Return the constraint that job_submit.lua wrote; None if the owner has changed the constraint."""
    found = taken_apart(job.features)
    return found if found is not None and frozenset(found.zones) == zones else None


def change_of(
    written: ZoneConstraint, nodes: int, reason: str, waited_s: float, wait_s: float, table: ZoneTable | None
) -> ConstraintChange | None:
    """Return the change to a pending job's constraint; None if no change is needed."""
    if table is None or table.mode != "enforce":
        return ConstraintChange(written.own, "zones are not enforced")
    if reason.startswith(_WRONG):
        return ConstraintChange(written.own, f"Slurm reports {_WRONG}")
    if waited_s >= wait_s:
        return ConstraintChange(written.own, f"waited {wait_s:.0f} s for a zone")
    scale = scale_of(nodes, table.most_medium)
    points = {name: by_scale[scale] for name, by_scale in table.scores.items()}
    order = reordered(written.zones, points, MARGIN)
    return (
        None if order is None else ConstraintChange(joined(written.own, order), f"{order[0]} scores higher")
    )


class ZoneWait(Duty):
    """Tracks how long each job has waited for its zone, across restarts."""

    def __init__(
        self,
        features: ConstraintClient,
        run_directory: Path,
        wait_s: float,
        clock: Clock,
        acts: AuditReporter,
    ) -> None:
        super().__init__(
            clock,
            f"zones of waiting jobs could not be checked: %s; retrying every {EVERY_S:.0f} s",
            "zones of waiting jobs are checked again",
            every_s=EVERY_S,
        )
        self._features, self._wait_s, self._acts = features, wait_s, acts
        self._path = run_directory / FILE_NAME
        self._waited_s = _read(self._path)
        self._refused = OutageLog(log, "constraint not changed: jobs %s; retrying while they wait", clock)
        self._unwritten = OutageLog(
            log,
            "waiting times for zones could not be saved: %s; they count from 0 after a restart",
            clock,
            over=f"{self._path} is written again",
        )
        self._checked_at: float | None = None
        self._for_nodes: frozenset[int] = frozenset()
        """Jobs that were waiting for nodes at the last check, according to their reason."""

    def prepare(self, view: QueueView) -> bool:
        """Return whether slurmctld answered, even if it is not active on this host (see `work`)."""
        return view.answered

    def work(self, view: QueueView) -> None:
        """Check the jobs that wait for a zone.

        Only the slurm-gpuctld on the host of the active slurmctld writes constraints, because slurm-gpu.yaml
        may differ between hosts. Every slurm-gpuctld tracks the waiting times, so these times survive a
        failover.
        """
        zoned = {
            job.job_id: (job, zones)
            for job in view.jobs
            if job.phase is JobPhase.PENDING and (zones := written_zones(job.admin_comment))
        }
        now = self._clock.monotonic()
        since_s = 0.0 if self._checked_at is None else min(now - self._checked_at, _MOST_BETWEEN_S)
        self._checked_at = now
        waiting = self._features.pending(zoned.keys()) if zoned else []
        before, self._waited_s = self._waited_s, {}
        for_nodes: set[int] = set()
        changes: dict[tuple[str, ConstraintChange], list[int]] = {}
        for job in waiting:
            counted, zones = zoned[job.job_id]
            written = ours(job, zones)
            if written is None:
                continue
            waited_s = before.get(job.job_id, 0.0)
            if job.reason.lstrip("(").startswith(_FOR_NODES):
                for_nodes.add(job.job_id)
                waited_s += since_s if job.job_id in self._for_nodes else 0.0
            self._waited_s[job.job_id] = waited_s
            change = change_of(written, counted.n_nodes, job.reason, waited_s, self._wait_s, view.zones)
            if change is not None:
                changes.setdefault((job.features, change), []).append(job.job_id)
        self._for_nodes = frozenset(for_nodes)
        if self._waited_s != before:
            self._write()
        for (old, change), job_ids in changes.items():
            if view.in_charge:
                self._make(old, change, job_ids)

    def _make(self, old: str, change: ConstraintChange, job_ids: Sequence[int]) -> None:
        named = few(job_ids, 10)
        try:
            self._features.write(job_ids, change.features)
        except SlurmError as error:
            self._refused.failed(f"{named}: {error}")
            return
        if taken_apart(change.features) is None:
            self._acts.add("own constraint restored", f"jobs {named}", change.why, old, change.features)
        else:
            log.info("jobs %s: constraint changed to %s: %s", named, change.features, change.why)

    def _write(self) -> None:
        waited_s = {str(job): round(seconds, 1) for job, seconds in self._waited_s.items()}
        try:
            write_run_file(self._path, json.dumps(waited_s))
            self._unwritten.worked()
        except OutsideError as error:
            self._unwritten.failed(error)


def _read(path: Path) -> dict[int, float]:
    """Return the seconds that each job has waited; {} if the file is missing or damaged."""
    try:
        found = {int(job_id): float(seconds) for job_id, seconds in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
    return {job_id: seconds for job_id, seconds in found.items() if 0 <= seconds < math.inf}
