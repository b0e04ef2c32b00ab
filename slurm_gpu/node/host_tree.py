"""A job's processes on a machine without Slurm: those that NVML shows of its user, and what they started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from slurm_gpu.node.process.environment_jobs import FRESH_S, EnvironmentJobs
from slurm_gpu.node.process.job_cgroups import JobName
from slurm_gpu.node.process.procfs import Processes


class HostTree(EnvironmentJobs):
    """Stands in for what environments claim; `on_gpus` tells a user's processes on GPUs, in any thread."""

    def __init__(self, on_gpus: Callable[[int], Collection[int]], processes: Processes | None = None) -> None:
        self._own = Processes() if processes is None else processes
        super().__init__(self._own)
        self._on_gpus = on_gpus
        self._children: dict[int, list[int]] = {}
        self._listed_s: float | None = None

    def pids(self, job: JobName, now_s: float) -> Sequence[int]:
        """See EnvironmentJobs."""
        if job.uid is None:
            return []
        if self._listed_s is None or now_s - self._listed_s >= FRESH_S:
            self._list()
            self._listed_s = now_s
        found = dict.fromkeys(self._on_gpus(job.uid))
        waiting = list(found)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found[child] = None
                    waiting.append(child)
        return list(found)

    def _list(self) -> None:
        self._children = {}
        for pid in self._own.ids():
            try:
                self._children.setdefault(self._own.stat(pid).ppid, []).append(pid)
            except OSError:
                continue  # gone
