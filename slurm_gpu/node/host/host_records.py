"""Create the host records of all segments. Jobs are sampled in a thread, because reads of /proc can block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.application.recognition import Recognition
from slurm_gpu.node.application.rules import ApplicationRules
from slurm_gpu.node.host.host_watch import HostWatch
from slurm_gpu.node.process.environment_jobs import EnvironmentJobs
from slurm_gpu.node.process.host_stats import HostStats
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.node.process.node_counters import NodeCounters, NodeReading
from slurm_gpu.node.process.procfs import Processes
from slurm_gpu.node.worker_thread import WorkerThread
from slurm_gpu.wire import Host

log = logging.getLogger(__name__)

STUCK_S = 30.0
_MOST_STUCK = 4
_NODE_FRESH_S = 0.2
# A round usually takes milliseconds, so its end is polled at this short interval.
_ASK_S = 0.5
# The cgroups of this many recently ended jobs are remembered.
_GROUPS_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """The mount points of kernel file systems."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    sys: Path = Path("/sys")


@dataclass(slots=True)
class _WatchedHost:
    watch: HostWatch
    end_s: float | None = None
    stuck: bool = False


@dataclass(slots=True)
class _Round:
    """A round that samples several jobs in sequence; the samples of the first `done` jobs are complete.

    An `abandoned` round stops, because the next round samples its remaining jobs. `over` is true once the
    round has ended.
    """

    entries: Sequence[_WatchedHost]
    on_gpu: Mapping[int, Sequence[int]]
    began_s: float
    ask_s: float
    done: int = 0
    abandoned: bool = False
    over: bool = False


class HostRecorder:
    """Creates host records of the open segments of `node`; call `sync` and `step` periodically."""

    def __init__(
        self,
        node: str,
        rules: ApplicationRules,
        *,
        mounts: Mounts | None = None,
        worker: WorkerThread | None = None,
        environments: EnvironmentJobs | None = None,
    ) -> None:
        mounts = Mounts() if mounts is None else mounts
        self._rules = rules
        self._processes = Processes(mounts.proc)
        self._cgroups = JobCgroups(node, mounts.cgroup)
        self._environments = EnvironmentJobs(self._processes) if environments is None else environments
        self._counters = NodeCounters(mounts.proc, mounts.sys)
        self._reading: NodeReading | None = None
        self._worker = WorkerThread("host") if worker is None else worker
        self._entries: dict[str, _WatchedHost] = {}
        # The last cgroup of each job. A cgroup may outlive its run and continue to count in the next run.
        self._groups: dict[int, int] = {}
        self._round: _Round | None = None
        # Stuck rounds, each with the ID of the user whose job blocks it.
        self._lost: list[tuple[_Round, int | None]] = []

    def begin(self, allocation: Allocation) -> None:
        """Start recording an allocation's job, and mark the other jobs as no longer alone on the node."""
        self.note_job(allocation.key.job_id)
        for entry in self._entries.values():
            if entry.watch.key.job_id == allocation.key.job_id:
                self._remember_group(entry.watch)
        job = JobName(allocation.key.job_id, allocation.uid, allocation.sluid)
        watch = HostWatch(
            allocation.key,
            job,
            start_s=allocation.start_s,
            start_wall_s=allocation.start_wall_s,
            stats=HostStats(
                job,
                cgroups=self._cgroups,
                environments=self._environments,
                processes=self._processes,
                since_s=allocation.start_s,
                from_start=allocation.is_from_prolog,
                requeued=allocation.key.restart > 0,
                left_group=self._groups.get(job.job_id),
            ),
            recognition=Recognition(self._rules, self._processes),
            cgroups=self._cgroups,
        )
        if any(e.end_s is None and e.watch.key.job_id != job.job_id for e in self._entries.values()):
            watch.not_alone()
        self._entries[allocation.key.segment] = _WatchedHost(watch)

    def _remember_group(self, watch: HostWatch) -> None:
        if watch.group is None:
            return
        self._groups.pop(watch.key.job_id, None)
        self._groups[watch.key.job_id] = watch.group
        if len(self._groups) > _GROUPS_MOST:
            del self._groups[next(iter(self._groups))]

    def sync(self, allocations: Iterable[Allocation], now_s: float) -> None:
        """Start recording new allocations, and end the recording of those that are no longer open."""
        missing = set(self._entries)
        for allocation in allocations:
            if allocation.key.segment in self._entries:
                missing.discard(allocation.key.segment)
            else:
                self.begin(allocation)
        for segment in missing:
            self.end(segment, now_s)

    def note_job(self, job_id: int) -> None:
        """Mark the other jobs as no longer alone, because a job with or without GPUs starts on this node."""
        for entry in self._entries.values():
            if entry.watch.key.job_id != job_id:
                entry.watch.not_alone()

    def end(self, segment: str, end_s: float) -> None:
        """End a segment at `end_s` (Clock.monotonic()); a later `step` returns its final record."""
        entry = self._entries.get(segment)
        if entry is not None and entry.end_s is None:
            entry.end_s = end_s

    def step(self, now_s: float, on_gpu: Callable[[], Mapping[int, Sequence[int]]]) -> Sequence[Host]:
        """Sample the jobs whose sample is due, and return the final records of ended jobs.

        `on_gpu` returns the IDs of each job's processes on GPUs.
        """
        self._collect(now_s)
        if self._round is None:
            self._start_round(now_s, on_gpu)
            self._collect(now_s)
        return self._finish() if self._round is None else ()

    def next_step_s(self) -> float | None:
        """Return when `step` is due, or None if no job is being recorded."""
        if self._round is not None:
            return self._round.ask_s
        due = [entry.watch.next_sample_s for entry in self._entries.values() if self._may_sample(entry)]
        return min(due, default=None)

    def hosts(self, now_s: float) -> Sequence[Host]:
        """Return the current records of running jobs, or () while a round is in progress."""
        if self._round is not None:
            return ()
        return [entry.watch.host(now_s) for entry in self._entries.values() if entry.end_s is None]

    def _may_sample(self, entry: _WatchedHost) -> bool:
        if entry.stuck or entry.end_s is not None or len(self._lost) >= _MOST_STUCK:
            return False
        # A user who blocks one sample could also block the samples of other jobs.
        return not any(uid is not None and uid == entry.watch.uid for _, uid in self._lost)

    def _start_round(self, now_s: float, on_gpu: Callable[[], Mapping[int, Sequence[int]]]) -> None:
        due = [e for e in self._entries.values() if self._may_sample(e) and e.watch.next_sample_s <= now_s]
        if due:
            self._round = this = _Round(due, on_gpu(), now_s, now_s + _ASK_S)
            self._worker.start(lambda: self._run_round(this))

    def _run_round(self, this: _Round) -> None:
        """Sample the jobs of a round in the worker thread; the main thread does not access them meanwhile."""
        try:
            if self._reading is None or this.began_s - self._reading.at_s >= _NODE_FRESH_S:
                self._reading = self._counters.sample(this.began_s)
            for entry in this.entries:
                if this.abandoned:
                    return
                entry.watch.sample(this.began_s, self._reading, this.on_gpu.get(entry.watch.key.job_id, ()))
                this.done += 1
        finally:
            this.over = True

    def _collect(self, now_s: float) -> None:
        """Finish the round if it has ended, or abandon it if it is stuck."""
        self._lost = [lost for lost in self._lost if not lost[0].over]
        this = self._round
        if this is None:
            return
        if not self._worker.idle:
            if now_s - this.began_s < STUCK_S:
                this.ask_s = now_s + _ASK_S
                return
            this.abandoned = True
            self._worker.abandon()
            self._lost.append((this, self._at(this).watch.uid))
            self._abandon(this, "hangs")
        elif this.done < len(this.entries):
            self._abandon(this, "failed")
        self._round = None

    def _at(self, this: _Round) -> _WatchedHost:
        """Return the job that the round is sampling."""
        return this.entries[min(this.done, len(this.entries) - 1)]

    def _abandon(self, this: _Round, why: str) -> None:
        entry = self._at(this)
        entry.stuck = True
        log.warning(
            "sampling the processes of job %d %s; they are not sampled again%s",
            entry.watch.key.job_id,
            why,
            "" if len(self._lost) < _MOST_STUCK else ", nor are those of other jobs until a sample returns",
        )

    def _finish(self) -> list[Host]:
        """Return the final records of ended jobs."""
        ended = {segment: e for segment, e in self._entries.items() if e.end_s is not None}
        for segment, entry in ended.items():
            self._remember_group(entry.watch)
            del self._entries[segment]
        if ended:
            self._environments.keep({entry.watch.uid for entry in self._entries.values()})
        return [e.watch.host(e.end_s, final=True) for e in ended.values() if e.end_s is not None]
