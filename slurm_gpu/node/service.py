"""Assemble slurm-gpud: run sampling, shipping, systemd notifications and /metrics in one loop."""

from __future__ import annotations

import functools
import gzip
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu import __version__, munge
from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.daemon.heap import Heap
from slurm_gpu.daemon.systemd import Notifier
from slurm_gpu.errors import OutsideError, SlurmGpuError
from slurm_gpu.node.allocation.gres import WAIT_S, GresOrder
from slurm_gpu.node.allocation.hooks import HookDirectory, HookEvents
from slurm_gpu.node.allocation.slurmd import DEADLINE_S
from slurm_gpu.node.application.rules import NO_RULES, ApplicationRules, load_rules, rules_path
from slurm_gpu.node.daemon import NodeDaemon
from slurm_gpu.node.gpu.reader_process import START_DEADLINE_S, START_WAIT_S, ReaderProcess
from slurm_gpu.node.host.host_records import HostRecorder
from slurm_gpu.node.host_mode import HostJobs, HostOrder, HostProcesses, HostSource
from slurm_gpu.node.inotify import DirectoryWaiter
from slurm_gpu.node.jobs.inventory import DeviceOrder
from slurm_gpu.node.live import CachingReader, NodeSource
from slurm_gpu.node.metrics import DaemonHealth, expose
from slurm_gpu.node.metrics_server import MetricsServer
from slurm_gpu.node.one_shot import sample_all, summary
from slurm_gpu.node.process.environment_jobs import HostTree
from slurm_gpu.node.process.job_cgroups import JobCgroups
from slurm_gpu.node.process.node_counters import NodeCounters
from slurm_gpu.node.process.process_jobs import ProcessJobs
from slurm_gpu.node.shipping.post import DirectSender, HttpPost, Reply, ThreadSender
from slurm_gpu.node.shipping.ship import ShipmentScheduler
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.text.units import counted
from slurm_gpu.wire import HOST_CLUSTER
from slurm_gpu.wire.live import READER_EXITS

log = logging.getLogger(__name__)

# No job has this ID.
_NO_JOB = 0


class AlreadyRunningError(OutsideError):
    """Another slurm-gpud is using the directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The command-line options; `node` is None if --node was not given."""

    config: Path
    node: str | None
    run_dir: Path
    state_dir: Path
    source_address: str | None
    once: bool
    printing: bool
    no_slurm: bool


class Service:
    """All parts of slurm-gpud, and its main loop."""

    def __init__(self, options: ServiceOptions, config: SiteConfig, clock: Clock, notifier: Notifier) -> None:
        """Assemble all parts; raise OutsideError (AlreadyRunningError) if slurm-gpud cannot run here."""
        self._options, self._clock, self._notifier = options, clock, notifier
        self._name = options.node or os.uname().nodename.partition(".")[0]
        self._cluster = HOST_CLUSTER + self._name if options.no_slurm else config.cluster
        hooks = HookDirectory(options.run_dir, self._name, clock)
        self._spool = _open_spool(options, config, hooks)
        self._waiter = DirectoryWaiter(hooks.jobs)
        self._reader = ReaderProcess(clock, start_wait_s=START_DEADLINE_S if options.once else START_WAIT_S)
        self._seen = CachingReader(self._reader, self._reader)
        self._host_jobs: HostJobs | None = None
        events: HookEvents = hooks
        cgroups = JobCgroups(self._name)
        processes = ProcessJobs(job_of_sluid=cgroups.job_of_sluid)
        order: DeviceOrder = GresOrder(
            options.node, clock, wake=self._waiter.wake, wait_s=DEADLINE_S if options.once else WAIT_S
        )
        if options.no_slurm:
            processes, order = HostProcesses(), HostOrder()
            events = self._host_jobs = HostJobs(self._name, clock, self._seen, order, processes, self._spool)
        tree = None if self._host_jobs is None else HostTree(self._host_jobs.pids_of)
        self._hosts = HostRecorder(self._name, _rules(options.config), environments=tree)
        self._node = NodeDaemon(
            name=self._name,
            cluster=self._cluster,
            clock=clock,
            hooks=events,
            reader=self._seen,
            order=order,
            spool=self._spool,
            processes=processes,
            cgroups=cgroups,
            interval_s=config.sampling.interval_s,
            hosts=self._hosts,
            # Without Slurm, processes on GPUs are sampled every second in any case.
            follower=None if options.no_slurm else self._seen,
        )
        self._scheduler = self._make_scheduler(config)
        self._metrics = None if options.once else self._make_metrics(config)
        self._heap = Heap(clock)

    def _make_metrics(self, config: SiteConfig) -> MetricsServer | None:
        if config.metrics.listen is None:
            return None
        try:
            return MetricsServer(config.metrics.listen.host, config.metrics.listen.port, self._waiter.wake)
        except OutsideError as error:
            # Jobs are recorded even if the port is in use.
            log.error("%s; jobs are recorded, but /metrics is off until a restart", error)  # noqa: TRY400
            return None

    def _make_scheduler(self, config: SiteConfig) -> ShipmentScheduler:
        options = self._options
        kind = HostSource if options.no_slurm else NodeSource
        source = kind(self._name, self._clock, self._node, self._seen, NodeCounters(), self._own_values)
        post: Callable[[bytes], Reply] = functools.partial(_print, live=options.once)
        if not options.printing:
            credential = functools.partial(munge.encode, socket=config.munge_socket)
            # With a source address, this is one of several nodes on the host, so do not use the socket.
            local = config.database_socket if options.source_address is None else None
            post = HttpPost(config.database, options.source_address, credential, local)
        direct = options.once or options.printing
        sender = DirectSender(post) if direct else ThreadSender(post, self._waiter.wake)
        return ShipmentScheduler(self._spool.queue, sender, self._clock, self._name, source)

    def _own_values(self) -> Mapping[str, float]:
        exits = self._reader.exits.recent
        return {READER_EXITS: exits} if exits else {}

    def start(self) -> None:
        """Start sampling."""
        log.info("slurm-gpud %s records node %s of cluster %s", __version__, self._name, self._cluster)
        self._node.start()
        self._notifier.ready()

    def run_once(self) -> None:
        """Run the loop once: do all due work, then wait for the next event or due time."""
        self._node.step()
        if (dying := self._reader.exits.take()) is not None:
            self._node.report_reader_failing(dying)
        self._heap.tend()
        # After an answer from slurm-gpudbd, work may be due at once, so the scheduler runs first.
        due_s = min(self._scheduler.step(), self._report_status(), self._node.due_s())
        if self._host_jobs is not None:
            # Other users' processes run here without jobs, so the machine's counters belong to no job.
            self._hosts.note_job(_NO_JOB)
            due_s = min(due_s, self._host_jobs.due_s)
        self._waiter.wait(due_s - self._clock.monotonic())

    def wake(self) -> None:
        """End a wait; this can be called from signal handlers."""
        self._waiter.wake()

    def once(self) -> None:
        """Take one sample, ship all records, and print the table."""
        self._node.step()
        sample_all(self._seen, self._clock)
        self._node.stop()
        self._scheduler.ship_everything()
        self._scheduler.step()
        if not self._options.printing:
            print(summary(self._seen, self._node.jobs_by_device(), self._clock.monotonic()))
            if self._scheduler.failures:
                raise OutsideError(
                    f"{self._scheduler.last_failure}; unsent records remain in "
                    f"{self._options.state_dir / 'spool'}"
                )

    def stop(self) -> None:
        """Save all records and release all resources."""
        self._notifier.stopping()
        self._node.stop()
        if self._metrics is not None:
            self._metrics.close()
        self._reader.close()
        self._spool.close()

    def _report_status(self) -> float:
        """Answer Prometheus and notify systemd; return the time when systemd is to be notified again."""
        if self._metrics is not None:
            self._metrics.answer(self._exposition)
        if not self._notifier.listens:
            return math.inf
        gpus, jobs = len(self._seen.facts), len(self._node.open_jobs())
        state = f"{counted(gpus, 'GPU')}, {counted(jobs, 'job')}"
        if self._scheduler.failures:
            state += f"; slurm-gpudbd is unreachable, {counted(len(self._spool.queue), 'record')} waiting"
        if self._spool.failing:
            state += "; the spool cannot be written"
        return self._notifier.turned(self._clock.monotonic(), state)

    def _exposition(self) -> str:
        reader_pid = self._reader.pid
        health = DaemonHealth(
            reads=self._seen.reads,
            failed_reads=self._seen.failed_reads,
            open_jobs=len(self._node.open_jobs()),
            spool_bytes=self._spool.size_bytes,
            spool_items=len(self._spool.queue),
            spool_failing=self._spool.failing,
            shipment_failures=self._scheduler.failures,
            reader_exits=self._reader.exits.total,
            implausible=self._node.implausible.counts,
            pids={"main": os.getpid()} | ({} if reader_pid is None else {"reader": reader_pid}),
        )
        now_s = self._clock.monotonic()
        return expose(self._name, self._seen, self._node.jobs_by_device(), health, now_s)


def _open_spool(options: ServiceOptions, config: SiteConfig, hooks: HookDirectory) -> Spool:
    try:
        hooks.create()
        spool = Spool(
            options.state_dir / "spool",
            int(config.spool.max_size_mib * 2**20),
            mark=options.state_dir / "node" / "spool",
        )
        if not options.no_slurm:
            hooks.claim()
    except BlockingIOError as error:
        raise AlreadyRunningError(
            f"{error.filename} {error.strerror}; stop it, or use another --state-dir and --run-dir"
        ) from error
    except OSError as error:
        hint = "" if os.geteuid() == 0 else "; slurm-gpud requires root"
        raise OutsideError(f"{error.filename}: {error.strerror}{hint}") from error
    return spool


def _rules(site_file: Path) -> ApplicationRules:
    """Load the rules; if they are invalid, log the errors and return no rules."""
    try:
        return load_rules(rules_path(site_file))
    except SlurmGpuError as error:
        log.error("%s\nno application is recognised until this is fixed", error)  # noqa: TRY400
        return NO_RULES


def _print(body: bytes, *, live: bool) -> Reply:
    shipment = json.loads(gzip.decompress(body))
    for kind in ("devices", "runs", "records", "hosts", "events"):
        for item in shipment[kind]:
            print(json.dumps({kind[:-1]: item}), flush=True)
    if live and "live" in shipment:
        print(json.dumps({"live": shipment["live"]}), flush=True)
    return Reply(200, b'{"stored": 0}')  # printed items count as stored
