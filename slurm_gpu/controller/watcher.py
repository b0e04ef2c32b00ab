"""Poll the queue of slurmctld, sum up its jobs, and write snapshot.txt."""

from __future__ import annotations

import logging
import math
import re
import resource
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.controller.duty import InUse, QueueView
from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of, limit_of, possible_types
from slurm_gpu.controller.queue.demand import DecisionsWatch
from slurm_gpu.controller.queue.ended_runs import EndedRunsPoll
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.queue.poll_interval import PollPace
from slurm_gpu.controller.queue.resource_hours import (
    CountedRun,
    HourlyUse,
    ResourceHours,
    committed_hours,
    hourly_use,
)
from slurm_gpu.controller.queue.usage import Subject, UsageCounter, UsageOwner, owner_of, usage_by_rule
from slurm_gpu.controller.run_file import write_run_file
from slurm_gpu.controller.snapshot import snapshot_file as snapshots
from slurm_gpu.controller.snapshot.feature_table import OrderOf
from slurm_gpu.controller.snapshot.reserve_table import ReserveTable
from slurm_gpu.controller.snapshot.share_table import ShareTable
from slurm_gpu.controller.snapshot.snapshot_file import QueryTiming, Snapshot
from slurm_gpu.controller.snapshot.zone_table import ZoneTables
from slurm_gpu.controller.snapshot.zones import ZoneMap
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.policy.language.hour_sums import COMMITTED, parts_of
from slurm_gpu.policy.language.periods import period_start
from slurm_gpu.policy.lua.bundle import DECISIONS_LOG
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import (
    PolicyInForce,
    read_policy_in_force,
)
from slurm_gpu.slurm.client import SlurmClient, SlurmNode, SlurmSettings
from slurm_gpu.slurm.queue import CountedJob, JobPhase, QueueReader
from slurm_gpu.slurm.submission import Partition

log = logging.getLogger("slurm-gpuctld")

# Time for which the token of a job is listed after its submission.
SEEN_S = 120
_SETTINGS_EVERY_S = 600.0
_NODES_EVERY_S = 60.0
_NODES_EVERY_WITH_ZONES_S = 10.0

_TOKEN = re.compile(r"slurm-gpu/1 t=([0-9a-zA-Z]+)")


def cpu_seconds() -> float:
    """Return the CPU time of the calling thread and of this process's finished commands.

    Work in other threads has its own CPU limits, and must not delay the work of this thread.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


@dataclass(slots=True)
class _Script:
    """The installed job_submit.lua as of the last read."""

    stamp: tuple[int, int, int] | None = None
    policy: PolicyInForce = field(default_factory=PolicyInForce)


class QueueWatcher:
    """Polls Slurm and writes snapshots; `run_once` returns the delay until the next poll.

    The watcher continues after any failure. If a snapshot cannot be replaced, it becomes outdated, and
    job_submit.lua ignores it.
    """

    def __init__(
        self,
        config: SiteConfig,
        run_directory: Path,
        queue: QueueReader,
        client: SlurmClient,
        partitions: Callable[[], Sequence[Partition]],
        ended: EndedRunsPoll,
        clock: Clock,
        read_policy: Callable[[Path], PolicyInForce | None] = read_policy_in_force,
        cpu: Callable[[], float] = cpu_seconds,
        nodes: NodeCache | None = None,
        reserve: Callable[[], ReserveTable | None] = lambda: None,
        shares: Callable[[], ShareTable | None] = lambda: None,
        order_of: OrderOf = lambda kinds: None,
    ) -> None:
        self.path = run_directory / snapshots.FILE_NAME
        self._queue, self._client, self._clock = queue, client, clock
        self._ask_partitions, self._ended, self._read_policy = partitions, ended, read_policy
        self._reserve, self._shares = reserve, shares
        self._decisions, self._cpu = DecisionsWatch(run_directory / DECISIONS_LOG), cpu
        self._zones = ZoneMap(config.zones)
        self._zone_tables = ZoneTables(config.placement, config.zones, order_of)
        self._config = config
        self._hours = ResourceHours(ZoneInfo(config.timezone))
        self._usage = UsageCounter()
        self._pace = PollPace()
        self._script = _Script()
        self._settings: tuple[float, SlurmSettings] | None = None
        self._nodes = NodeCache(client, clock) if nodes is None else nodes
        self._partitions: tuple[float, Sequence[Partition]] | None = None
        self._generation = snapshots.last_generation(self.path)
        self._outage = OutageLog(
            log, f"snapshot {self.path} could not be written: %s", clock, over=f"{self.path} is written again"
        )
        self._asked_s = 0.0
        """Upper bound of the time that slurmctld needed for its last response."""
        self._answered = False
        self._jobs: Sequence[CountedJob] = ()
        self._snapshot: Snapshot | None = None
        self.facts = CountingFacts()
        """The facts used to count jobs in the last poll."""
        self.written = 0
        """Number of snapshots written."""

    @property
    def view(self) -> QueueView:
        """The queue as of the last poll."""
        running = frozenset((job.job_id, job.nodes) for job in self._jobs if job.phase is JobPhase.RUNNING)
        if not self._answered or self._snapshot is None:
            return QueueView(running=hash(running))
        policy, jobs, facts = self._script.policy, self._jobs, self.facts
        return QueueView(
            answered=True,
            running=hash(running),
            jobs=jobs,
            policy=policy,
            facts=facts,
            zones=self._zone_tables.last,
            in_use=InUse(policy, self._snapshot, lambda: usage_by_rule(policy, jobs, facts)),
        )

    def run_once(self) -> float:
        """Poll once and write the snapshot; return the seconds until the next poll."""
        began, cpu_s = self._clock.monotonic(), self._cpu()
        self._answered = False
        try:
            text = snapshots.render(self.poll())
        except SlurmError as error:
            took_s = self._clock.monotonic() - began
            self._outage.failed(error)
            return self._pace.after_failure(took_s)
        self._answered = True
        try:
            write_run_file(self.path, text)
        except OutsideError as error:
            self._outage.failed(error)
        else:
            self.written += 1
            self._outage.worked()
        now = self._clock.monotonic()
        demand = self._decisions.demand(now)
        return self._pace.after_answer(self._asked_s, now - began, self._cpu() - cpu_s, demand)

    def hurried(self, pause_s: float) -> float:
        """Return the pause, shortened if a submission is waiting for the next poll."""
        if not self._answered:
            return pause_s
        return min(pause_s, self._pace.while_asked_for(self._decisions.demand(self._clock.monotonic())))

    def poll(self) -> Snapshot:
        """Return the current state of the cluster; raise SlurmError if slurmctld does not answer."""
        settings, nodes, partitions = self._slow_answers()
        now_s = self._clock.wall()
        asked_at = self._clock.monotonic()
        self._jobs = jobs = self._queue.read()
        self._asked_s = self._clock.monotonic() - asked_at
        policy = self._policy(Path(settings.conf_path).parent / SCRIPT_NAME)
        self.facts = facts = facts_of(policy, nodes, partitions)
        self._generation = max(self._generation + 1, int(now_s * 1000))
        usage, hours = self._usage.usage_of(jobs, policy.groups, facts), None
        zone = ZoneInfo(self._config.timezone)
        periods = {
            key: period for key in sorted(policy.hour_sums) if (period := parts_of(key)[1]) != COMMITTED
        }
        starts = {key: period_start(period, now_s, zone) for key, period in periods.items()}
        if starts and _has_accounting(settings):
            hours = self._resource_hours(jobs, policy, facts, starts, now_s)
            starts = {key: at_s for key, at_s in starts.items() if at_s >= self._ended.known_since_s}
        self._snapshot = Snapshot(
            generation=self._generation,
            as_of_s=int(now_s),
            groups_id=policy.groups_id,
            usage=usage if hours is None else usage.with_users(self._hours.uids),
            hours=hours,
            period_starts=starts if hours is not None else {},
            seen=_tokens(jobs, now_s),
            zones=tuple(self._zones.rooms(nodes)),
            reserve=self._reserve(),
            shares=self._shares(),
            placement=self._zone_tables.of(nodes, jobs, facts),
            timing=QueryTiming(asked_at, self._asked_s, self._clock.boot_id()),
        )
        return self._snapshot

    def _slow_answers(self) -> tuple[SlurmSettings, Sequence[SlurmNode], Sequence[Partition]]:
        """Return configuration, nodes and partitions, which are polled less often than the queue."""
        now = self._clock.monotonic()
        every_s = _NODES_EVERY_WITH_ZONES_S if self._zones else _NODES_EVERY_S
        if self._settings is None or now - self._settings[0] >= _SETTINGS_EVERY_S:
            self._settings = now, self._client.settings()
        nodes = self._nodes.within(every_s)
        if self._partitions is None or now - self._partitions[0] >= _SETTINGS_EVERY_S:
            self._partitions = now, self._ask_partitions()
        return self._settings[1], nodes, self._partitions[1]

    def _policy(self, script: Path) -> PolicyInForce:
        """Return the policy of the installed script; reload it if the file has changed."""
        try:
            status = script.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:  # the file is missing or not readable
            stamp = None
        if stamp != self._script.stamp or stamp is None:
            try:
                found = None if stamp is None else self._read_policy(script)
            except OutsideError as error:
                log.warning("use by group could not be counted: %s", error)
                found = None
            self._script = _Script(stamp, PolicyInForce() if found is None else found)
        return self._script.policy

    def _resource_hours(
        self,
        jobs: Sequence[CountedJob],
        policy: PolicyInForce,
        facts: CountingFacts,
        starts: Mapping[str, int],
        now_s: float,
    ) -> dict[Subject, dict[str, float]] | None:
        units = frozenset(parts_of(key)[0] for key in policy.hour_sums)
        if not units <= self._hours.units:
            self._hours = ResourceHours(ZoneInfo(self._config.timezone), units)
            self._ended.restart()
        units = self._hours.units  # includes those of an earlier policy, which may return
        runs, are_first = self._ended.poll(min(starts.values()), now_s, facts, units)
        if are_first:
            self._hours = ResourceHours(ZoneInfo(self._config.timezone), units)
        for run in runs:
            self._hours.note_ended(run)
        running = []
        for job in jobs:
            if job.phase is JobPhase.PENDING or job.start_s is None:
                continue
            hourly = hourly_use(amounts_of(job, facts), possible_types(job.partition, facts), units)
            if job.phase is JobPhase.RUNNING:
                running.append(CountedRun(job.job_id, owner_of(job), hourly, job.start_s, None))
            else:
                self._hours.note_gone(CountedRun(job.job_id, owner_of(job), hourly, job.start_s, job.end_s))
        if self._ended.known_since_s == math.inf:
            return None
        found = self._hours.totals(running, policy.groups, starts, now_s)
        hard = {key for key in policy.hour_sums if parts_of(key)[1] == COMMITTED}
        if hard:
            jobs_left = self._may_use(jobs, now_s, units)
            for subject, committed in committed_hours(jobs_left, policy.groups, hard).items():
                found[subject] = {**found.get(subject, {}), **committed}
        return found

    def _may_use(
        self, jobs: Sequence[CountedJob], now_s: float, units: Collection[str]
    ) -> Iterator[tuple[UsageOwner, HourlyUse, float]]:
        """Yield the owner, the use per hour and the remaining time of each pending or running job."""
        for job in jobs:
            if job.phase is JobPhase.ENDED:
                continue
            of_task = hourly_use(
                self._usage.amounts_of(job), possible_types(job.partition, self.facts), units
            )
            hourly = {unit: job.n_tasks * hours for unit, hours in of_task.items()}
            if job.phase is JobPhase.RUNNING:
                left_s = math.inf if job.end_s is None else job.end_s - now_s
                if job.is_suspended and job.limit_s is not None:
                    left_s = job.limit_s  # Slurm moves the end of a suspended job when it resumes
            else:
                left_s = limit_of(job, self.facts)
            yield owner_of(job), hourly, left_s


def _has_accounting(settings: SlurmSettings) -> bool:
    """Return whether slurmdbd has the jobs that ended before the first poll."""
    return settings.raw.get("AccountingStorageType", "").endswith("slurmdbd")


def facts_of(
    policy: PolicyInForce, nodes: Sequence[SlurmNode], partitions: Sequence[Partition]
) -> CountingFacts:
    """Return the facts needed to count jobs."""
    types = {}
    for node in nodes:
        kinds = [kind for kind, count in node.gpus.items() if count]
        if len(kinds) == 1 and kinds[0]:
            types[node.name] = kinds[0].lower()
    return CountingFacts(
        shards_per_gpu=policy.shards_per_gpu,
        mps_per_gpu=policy.mps_per_gpu,
        partition_gpus=policy.partition_gpus,
        partition_cpus=policy.partition_cpus,
        partition_types=policy.partition_gpu_types,
        default_mib_per_cpu=policy.default_mib.get("per_cpu"),
        whole_partitions=frozenset(partition.name for partition in partitions if partition.whole_nodes),
        partition_limits_s={part.name: part.default_time_s or part.max_time_s for part in partitions},
        node_types=types,
    )


def _tokens(jobs: Sequence[CountedJob], now_s: float) -> dict[str, int]:
    """Return the submit times of recent jobs by token, the latest first; array tasks share a token."""
    tokens: dict[str, int] = {}
    for job in jobs:
        if job.submit_s is not None and now_s - job.submit_s <= SEEN_S:
            match = _TOKEN.match(job.admin_comment)
            if match is not None:
                tokens.setdefault(match[1], job.submit_s)
    return dict(sorted(tokens.items(), key=itemgetter(1), reverse=True))
