"""Set the priority points (SiteFactor) that waiting jobs receive for their scale and waiting time.

`priority` itself is never set, because a fixed priority would freeze Slurm's own age factor. The weights are
reloaded when slurm-gpu.yaml changes. Jobs keep their points when slurm-gpuctld exits, and the next process
continues from these points.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig, load_config
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import SlurmError, SlurmGpuError
from slurm_gpu.placement.priority import PriorityWeights, is_earned, points
from slurm_gpu.placement.zones import JobScale, ZoneLoad, most_medium_nodes, scale_of
from slurm_gpu.slurm.client import SlurmClient, SlurmNode, WaitingJob
from slurm_gpu.slurm.tres import amount
from slurm_gpu.text.hostlist import expand

log = logging.getLogger("slurm-gpuctld")

CYCLE_S = 60.0
# Maximum share of a core that updating priorities may use.
_CPU_SHARE = 0.005
_SITE_PLUGIN = "PrioritySiteFactorPlugin"
_NO_PLUGIN = ("", "(null)", "site_factor/none")


def fewest_nodes(job: WaitingJob, nodes: Sequence[SlurmNode]) -> int:
    """Return the minimum number of these nodes that a job requires.

    If a job requests a range of nodes, Slurm reports only the maximum. The minimum is computed from the job's
    CPUs, memory and GPUs and from the largest node. The minimum never exceeds the number that Slurm reports.
    """
    needs = [int(job.tres.get("node", job.n_nodes))]
    for name, most in (
        ("cpu", max((node.cpus for node in nodes), default=0)),
        ("mem", max((node.memory_mib for node in nodes), default=0)),
        ("gres/gpu", max((node.n_gpus for node in nodes), default=0)),
    ):
        if asked := amount(job.tres, "gpu") if name == "gres/gpu" else job.tres.get(name):
            needs.append(math.ceil(asked / most) if most else job.n_nodes)
    return min(job.n_nodes, max(needs))


class PriorityController(Duty):
    """Sets priority points; jobs keep their current points while updates fail."""

    def __init__(
        self,
        config: SiteConfig,
        path: Path,
        client: SlurmClient,
        clock: Clock,
        acts: AuditReporter,
        cpu: Callable[[], float],
        nodes: NodeCache,
    ) -> None:
        super().__init__(
            clock,
            "priorities of waiting jobs could not be updated: %s",
            "priorities of waiting jobs are updated again",
            every_s=CYCLE_S,
            cpu=cpu,
            cpu_share=_CPU_SHARE,
        )
        self._path, self._client, self._acts = path, client, acts
        self._nodes = nodes
        self._stamp = _stamp(path)
        self._weights, self._enforces = weights_of(config), config.placement.mode == "enforce"
        self._most_medium = _most_medium(config)
        self._set: dict[int, int] = {}
        """The points that this process has set for each waiting job."""

    def prepare(self, view: QueueView) -> bool:
        """Reload the weights if the site file has changed; return whether there is work."""
        self._read_weights()
        has_work = self._enforces and view.in_charge and (self._weights is not None or bool(self._set))
        if not has_work:
            self._outage.worked()
        return has_work

    def work(self, view: QueueView) -> None:
        """Set the points of each waiting job."""
        if self._client.settings().raw.get(_SITE_PLUGIN, "") not in _NO_PLUGIN:
            raise SlurmError(f"Slurm is configured with a {_SITE_PLUGIN}, which uses the same field")
        jobs = self._client.waiting()
        if jobs is None:
            raise SlurmError("Slurm's PriorityType is not priority/multifactor")
        wanted = self._wanted(jobs, self._nodes.within(CYCLE_S) if jobs else ())
        steps: defaultdict[int, list[int]] = defaultdict(list)
        for job in jobs:
            if wanted.get(job.job_id, job.site_factor) != job.site_factor:
                steps[wanted[job.job_id]].append(job.job_id)
        self._set = wanted
        failed: SlurmError | None = None
        for value, job_ids in steps.items():
            try:
                self._client.set_site_factor(job_ids, value)
            except SlurmError as error:  # also raised for a job that started meanwhile
                failed = error
        if failed is not None and not self._any_took(steps):
            raise failed

    def _wanted(self, jobs: Sequence[WaitingJob], nodes: Sequence[SlurmNode]) -> dict[int, int]:
        """Return the points of each job, except jobs whose points were set by hand."""
        wanted: dict[int, int] = {}
        now_s = self._clock.wall()
        for job in jobs:
            earned = 0
            if self._weights is not None:
                scale = scale_of(fewest_nodes(job, nodes), self._most_medium)
                earned = points(self._weights, scale, now_s - job.eligible_s)
            is_ours = self._set.get(job.job_id) == job.site_factor or (
                self._weights is not None and is_earned(self._weights, job.site_factor, earned)
            )
            if is_ours:
                wanted[job.job_id] = earned
        return wanted

    def _any_took(self, steps: dict[int, list[int]]) -> bool:
        """Return whether one of these jobs has its new points, or whether all have stopped waiting."""
        wanted = {job_id: value for value, job_ids in steps.items() for job_id in job_ids}
        waiting = [job for job in self._client.waiting() or () if job.job_id in wanted]
        return not waiting or any(job.site_factor == wanted[job.job_id] for job in waiting)

    def _read_weights(self) -> None:
        """Reload the weights if the site file changed; keep the current weights if the file has errors."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            config = load_config(self._path)
        except SlurmGpuError as error:
            log.warning("priority weights could not be reloaded: %s", error)
            return
        fresh = weights_of(config)
        if fresh != self._weights:
            self._acts.add(
                "priority weights changed",
                str(self._path),
                "the file was changed",
                old=_text(self._weights),
                new=_text(fresh),
            )
            self._weights, self._due_s = fresh, 0.0


def weights_of(config: SiteConfig) -> PriorityWeights | None:
    """Return the priority weights in the site file; None if the file sets no weights."""
    settings = config.placement.priority
    if settings is None:
        return None
    return PriorityWeights(
        {JobScale(name): rate for name, rate in settings.per_hour.items()}, settings.max_points
    )


def _most_medium(config: SiteConfig) -> int:
    loads = []
    for name, zone in config.zones.items():
        n_nodes = len(expand(zone.nodes))
        loads.append(ZoneLoad(name, zone.role, nodes=n_nodes, free_nodes=n_nodes, mgpu=0))
    return most_medium_nodes(loads)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _text(weights: PriorityWeights | None) -> str:
    """Return a text such as "large 40, medium 20 an hour, 1000 at most"."""
    if weights is None:
        return "none"
    rates = ", ".join(f"{scale} {rate:g}" for scale, rate in sorted(weights.per_hour.items()))
    return f"{rates} an hour, {weights.most} at most"
