"""What a job's processes used on this node: CPU time, memory, storage traffic.

| quantity | source, best first |
|---|---|
| CPU seconds | the job's cgroup (cpu.stat, cpuacct.usage); else added up over its processes |
| memory | the job's cgroup (anonymous and shared memory, no page cache); else the sum of its processes' RSS |
| bytes read, written | added up over its processes |

Storage traffic never comes from cgroups: Slurm turns on neither blkio nor io for jobs, and both miss network
filesystems; v1 books what is written back later on nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.node.process.environment_jobs import EnvironmentJobs
from slurm_gpu.node.process.job_cgroups import CgroupCounter, JobCgroups, JobName
from slurm_gpu.node.process.process_sums import MAX_PROCESSES, ProcessSums
from slurm_gpu.node.process.procfs import Processes

_SOME = 256


class Growth:
    """How far a counter has come since the watch began, over groups that go and come again."""

    def __init__(self, *, from_zero: bool, left: int | None = None) -> None:
        """`from_zero`: what it shows at first was counted during the watch, unless it is the group `left`."""
        self.total: float | None = None
        self._from_zero, self._left = from_zero, left
        self._last: CgroupCounter | None = None

    def feed(self, counted: CgroupCounter | None) -> None:
        """What it shows now; None where it cannot be read (the time is not lost if it can be again)."""
        if counted is None:
            if self._last is None:
                self._from_zero = True  # what comes later began during the watch
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
        """The group that was counted last."""
        return None if self._last is None else self._last.identity


class HostStats:
    """One job's sums on this node since `since_s`, or since it began if the watch did (`from_start`).

    A `requeued` job's processes from before that are those of its last run that outlived it, as may be the
    cgroup `left_group`.
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
        self._cpu = Growth(from_zero=from_start, left=left_group)
        self.process_count = 0
        self._some: Sequence[int] = ()
        self.in_cgroup: bool | None = None
        """Does Slurm put the job into a cgroup? None: no process of it has been seen."""
        self.rss_max_mib: float | None = None

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds."""
        return self._sums.cpu_s if self._cpu.total is None else self._cpu.total

    @property
    def group(self) -> int | None:
        """The cgroup by which CPU time was counted last; None where it was by none."""
        return self._cpu.group

    @property
    def read_bytes(self) -> int | None:
        """Bytes fetched from storage."""
        return self._sums.read_bytes

    @property
    def write_bytes(self) -> int | None:
        """Bytes sent to storage."""
        return self._sums.write_bytes

    def look(self, now_s: float, on_gpu: Sequence[int] = (), *, storage: bool = True) -> None:
        """Count what was used since the last look; `on_gpu` counts where no other process is known.

        Without `storage` its traffic is left for a later look.
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
        self._sums.look(pids, storage=storage)
        self._cpu.feed(self._cgroups.cpu_s(self._job))
        memory = self._cgroups.memory_mib(self._job)
        if memory is None:
            memory = self._sums.resident_mib
        if memory is not None:
            self.rss_max_mib = memory if self.rss_max_mib is None else max(self.rss_max_mib, memory)

    def busiest(self) -> Sequence[int]:
        """The job's processes, those that used most CPU time first; some of them where they are too many."""
        return self._sums.busiest() or self._some
