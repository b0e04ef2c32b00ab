"""Record one segment's host usage and application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from slurm_gpu.node.application.recognition import Recognition
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.process.host_stats import HostStats
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.node.process.node_counters import NodeReading
from slurm_gpu.wire import Host

# The interval between samples is 5 % of the job's age, within these bounds; usage after the last sample is
# not recorded. Jobs with many processes are sampled less often, since their samples cost more.
FIRST_PAUSE_S = 0.25
PAUSE_S = 10.0
LARGE_PAUSE_S = 30.0
LARGE_JOB = 100
_SHARE_OF_AGE = 0.05
# Reading storage traffic doubles the cost of a sample, so it is read in every third sample of older jobs.
_STORAGE_PAUSES = 2.5

# Job ages at which processes are scanned for applications, and the interval of later scans, which are needed
# since notebooks import packages late.
RECOGNITION_AGES_S = (1.0, 5.0, 30.0, 120.0, 600.0)
RECOGNITION_PAUSE_S = 1800.0

_TRAFFIC = ("net_rx_bytes", "net_tx_bytes", "ib_rx_bytes", "ib_tx_bytes")


class HostWatch:
    """Samples one job's processes on this node, starting at `start_s` (Clock.monotonic()).

    `start_wall_s` is the wall clock at `start_s`.
    """

    def __init__(
        self,
        key: SegmentKey,
        job: JobName,
        *,
        start_s: float,
        start_wall_s: float,
        stats: HostStats,
        recognition: Recognition,
        cgroups: JobCgroups,
    ) -> None:
        self.key, self._job = key, job
        self._start_s, self._start_wall_s = start_s, start_wall_s
        self._stats, self._recognition, self._cgroups = stats, recognition, cgroups
        self._seq = 0
        self._recognise_s = start_s + RECOGNITION_AGES_S[0]
        self._storage_s = start_s
        self._alone = True
        self._traffic_before: NodeReading | None = None
        self._traffic: NodeReading | None = None
        self.next_sample_s = start_s

    @property
    def uid(self) -> int | None:
        """Return the ID of the job's user."""
        return self._job.uid

    @property
    def group(self) -> int | None:
        """Return the identity of the job's cgroup at the last sample."""
        return self._stats.group

    def not_alone(self) -> None:
        """Record that another job runs on this node, which makes the network traffic of this job unknown."""
        self._alone = False

    def sample(self, now_s: float, node: NodeReading, on_gpu: Sequence[int] = ()) -> None:
        """Take a sample; `on_gpu` contains the IDs of the job's processes on GPUs."""
        storage = now_s >= self._storage_s
        self._stats.sample(now_s, on_gpu, storage=storage)
        self._sample_traffic(node)
        if now_s >= self._recognise_s:
            self._recognise_s = self._next_recognition_s(now_s)
            self._recognition.scan(list(dict.fromkeys((*on_gpu, *self._stats.busiest()))))
            if self._recognition.unfinished:
                self._recognise_s = now_s
        most_s = LARGE_PAUSE_S if self._stats.process_count > LARGE_JOB else PAUSE_S
        pause_s = min(most_s, max(FIRST_PAUSE_S, _SHARE_OF_AGE * (now_s - self._start_s)))
        if storage and pause_s >= PAUSE_S:
            self._storage_s = now_s + _STORAGE_PAUSES * pause_s
        # Samples of older jobs coincide, so that the jobs share one reading of the node.
        self.next_sample_s = now_s + pause_s if pause_s < PAUSE_S else (now_s // pause_s + 1) * pause_s

    def host(self, now_s: float, *, final: bool = False) -> Host:
        """Create the record from the samples so far, with the next sequence number."""
        self._seq += 1
        finding = self._recognition.best
        return Host(
            **(asdict(self.key) | {name: self._traffic_of(name) for name in _TRAFFIC}),
            seq=self._seq,
            final=final,
            first_s=int(self._start_wall_s),
            last_s=int(self._start_wall_s + max(0.0, now_s - self._start_s)),
            uptime_s=round(self._start_s, 6),
            cpu_s=_rounded(self._stats.cpu_s),
            rss_max_mib=_rounded(self._stats.rss_max_mib),
            read_bytes=self._stats.read_bytes,
            write_bytes=self._stats.write_bytes,
            app=None if finding is None else finding.rule.name,
            app_field=None if finding is None else finding.rule.field,
            app_params=None if finding is None else finding.parameters,
            container=self._recognition.container,
        )

    def _sample_traffic(self, node: NodeReading) -> None:
        # Jobs that have no GPUs or started before this daemon can be detected only by their cgroups.
        if self._alone:
            self._alone = self._stats.in_cgroup is not False and self._cgroups.is_alone(self._job)
        self._traffic_before = self._traffic_before or node
        self._traffic = node

    def _traffic_of(self, name: str) -> int | None:
        if not (self._alone and self._stats.in_cgroup and self._traffic and self._traffic_before):
            return None
        before, now = getattr(self._traffic_before, name), getattr(self._traffic, name)
        return None if before is None or now is None else now - before

    def _next_recognition_s(self, now_s: float) -> float:
        later = (self._start_s + age for age in RECOGNITION_AGES_S)
        return next((at_s for at_s in later if at_s > now_s), now_s + RECOGNITION_PAUSE_S)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
