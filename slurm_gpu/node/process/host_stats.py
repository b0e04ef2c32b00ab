"""Measure a job's use of this node: CPU time, memory and storage traffic.

- CPU seconds: from the job's cgroup (cpu.stat, cpuacct.usage), or else the sum over its processes
- memory: from the job's cgroup (anonymous and shared memory, no page cache), or else the sum of its
  processes' RSS
- bytes read and written: the sum over the job's processes

Storage traffic is never read from cgroups, because Slurm enables neither blkio nor io for jobs. Moreover,
both controllers ignore network file systems, and v1 does not attribute later write-back to any job.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.node.process.environment_jobs import EnvironmentJobs
from slurm_gpu.node.process.job_cgroups import CgroupCounter, JobCgroups, JobName
from slurm_gpu.node.process.process_sums import MAX_PROCESSES, ProcessSums
from slurm_gpu.node.process.procfs import Processes

_SOME = 256


class CgroupGrowth:
    """The growth of a cgroup counter since the observation started, even if the cgroup is recreated."""

    def __init__(self, *, from_zero: bool, left: int | None = None) -> None:
        """If `from_zero` is true, count the first value in full, unless it comes from the cgroup `left`."""
        self.total: float | None = None
        self._from_zero, self._left = from_zero, left
        self._last: CgroupCounter | None = None

    def feed(self, counted: CgroupCounter | None) -> None:
        """Add the current value, or None if it cannot be read; the next value covers the gap."""
        if counted is None:
            if self._last is None:
                self._from_zero = True  # any later cgroup is created during the observation
            return
        before = 0.0
        if self._last is None:
            is_new = self._from_zero and counted.identity != self._left
            before = 0.0 if is_new else counted.value
        elif self._last.identity == counted.identity and self._last.value <= counted.value:
            before = self._last.value
        self.total = (0.0 if self.total is None else self.total) + (counted.value - before)
        self._last = counted

    @property
    def group(self) -> int | None:
        """Return the identity of the last cgroup that was counted."""
        return None if self._last is None else self._last.identity


class HostStats:
    """The usage of one job on this node since `since_s`, or since the job started if `from_start` is true.

    Older processes of a `requeued` job belong to its earlier run; the cgroup `left_group` may, too.
    `in_cgroup` is true if Slurm puts the job into a cgroup, or None if no process has been observed yet.
    """

    def __init__(
        self,
        job: JobName,
        *,
        cgroups: JobCgroups,
        environments: EnvironmentJobs,
        processes: Processes,
        since_s: float,
        from_start: bool,
        requeued: bool = False,
        left_group: int | None = None,
    ) -> None:
        self._job, self._cgroups, self._environments = job, cgroups, environments
        self._sums = ProcessSums(processes, 0.0 if from_start and not requeued else since_s)
        self._cpu = CgroupGrowth(from_zero=from_start, left=left_group)
        self.process_count = 0
        self._some: Sequence[int] = ()
        self.in_cgroup: bool | None = None
        self.rss_max_mib: float | None = None

    @property
    def cpu_s(self) -> float | None:
        """Return the CPU seconds used, or None if they were not measured."""
        return self._sums.cpu_s if self._cpu.total is None else self._cpu.total

    @property
    def group(self) -> int | None:
        """Return the identity of the cgroup from which CPU time was last read, or None."""
        return self._cpu.group

    @property
    def read_bytes(self) -> int | None:
        """Return the bytes read from storage, or None if they were not measured."""
        return self._sums.read_bytes

    @property
    def write_bytes(self) -> int | None:
        """Return the bytes written to storage, or None if they were not measured."""
        return self._sums.write_bytes

    def sample(self, now_s: float, on_gpu: Sequence[int] = (), *, storage: bool = True) -> None:
        """Add the usage since the last sample; if no processes are found, those in `on_gpu` are used.

        If `storage` is false, storage traffic is left for a later sample.
        """
        pids = self._cgroups.pids(self._job, MAX_PROCESSES)
        if pids is not None:
            self.in_cgroup = True
        else:
            pids = self._environments.pids(self._job, now_s)
            if pids and self.in_cgroup is None:
                self.in_cgroup = False
            pids = pids or on_gpu
        self.process_count, self._some = len(pids), pids[:_SOME]
        self._sums.sample(pids, storage=storage)
        self._cpu.feed(self._cgroups.cpu_s(self._job))
        memory = self._cgroups.memory_mib(self._job)
        if memory is None:
            memory = self._sums.resident_mib
        if memory is not None:
            self.rss_max_mib = memory if self.rss_max_mib is None else max(self.rss_max_mib, memory)

    def busiest(self) -> Sequence[int]:
        """Return the job's processes by descending CPU time, or any 256 of them if there are too many."""
        return self._sums.busiest() or self._some
