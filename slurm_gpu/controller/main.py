"""slurm-gpuctld: watch Slurm on the controller, and publish the use of the cluster for job_submit.lua."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import slurm_gpu
from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.config.site import SiteConfig, default_path, load_config
from slurm_gpu.controller.background import in_background
from slurm_gpu.controller.colocation.database_queries import DatabaseQueries
from slurm_gpu.controller.colocation.evidence import DatabaseEvidence
from slurm_gpu.controller.colocation.pair_fit import PairFit
from slurm_gpu.controller.colocation.reconciler import ColocationReconciler
from slurm_gpu.controller.colocation.serving import Planners
from slurm_gpu.controller.colocation.terminations import Terminations
from slurm_gpu.controller.duty import Duty
from slurm_gpu.controller.notices.cancellations import Cancellations
from slurm_gpu.controller.notices.poll import poll_database
from slurm_gpu.controller.notices.reconciler import NoticeController
from slurm_gpu.controller.placement.priorities import PriorityController
from slurm_gpu.controller.placement.weights import WeightController
from slurm_gpu.controller.placement.zone_wait import ZoneWait
from slurm_gpu.controller.queue import job_mix as jobmix
from slurm_gpu.controller.queue.call_statistics import CountingRun
from slurm_gpu.controller.queue.ended_runs import EndedRunsPoll
from slurm_gpu.controller.queue.job_mix import JobMix, MixedOrder
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.reporting.audit_reporter import FILE_NAME as ACTS_FILE
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.reporting.decision_shipper import DecisionShipper
from slurm_gpu.controller.reporting.quota_reporter import QuotaReporter
from slurm_gpu.controller.reservations.reconciler import ReservationReconciler
from slurm_gpu.controller.reservations.replacement import ReservationRepairer
from slurm_gpu.controller.reservations.rows import ReservationTable, exchanged
from slurm_gpu.controller.snapshot.reserve_table import reserve_table
from slurm_gpu.controller.urgent_audit import UrgentAudit
from slurm_gpu.controller.watcher import QueueWatcher, cpu_seconds
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.daemon.systemd import Notifier
from slurm_gpu.errors import OutsideError, exit_code_of
from slurm_gpu.files.owner import why_not_writable
from slurm_gpu.notices.settings import FILE_NAME as NOTICES_FILE
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import RunSubsetClient
from slurm_gpu.slurm.connect import connect
from slurm_gpu.slurm.job_changes import ConstraintClient, JobTerminationClient, SharedJobClient
from slurm_gpu.slurm.queue import QueueReader
from slurm_gpu.slurm.reservations import ReservationClient
from slurm_gpu.slurm.submission import read_partitions, read_user_associations

log = logging.getLogger("slurm-gpuctld")

_LOCK = "slurm-gpuctld.lock"
_REPORT_EVERY_S = 3600.0
# Interval at which demand for an earlier poll is checked.
_NOTICE_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; return the exit code (2: usage error, 3: external failure)."""
    options = make_parser().parse_args(argv)
    log_to_stderr(for_people=options.foreground or options.once)
    return exit_code_of("slurm-gpuctld", lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    notifier = Notifier(os.environ)
    clock = SystemClock()
    calls = CountingRun(clock)
    client = connect(calls)
    ended = EndedRunsPoll(client, in_background)
    nodes = NodeCache(client, clock)
    database = DatabaseConnector(config)
    acts = AuditReporter(
        clock,
        lambda events: database(lambda client: client.send_audit_events(events)),
        options.run_dir / ACTS_FILE,
    )
    reservations = _reservations(config, database, calls, client, nodes, clock, acts)
    sharing = ColocationReconciler(
        client,
        SharedJobClient(calls),
        DatabaseQueries(DatabaseEvidence(database), in_background),
        PairFit(in_background, clock),
        Planners(),
        Terminations(SharedJobClient(calls), acts, options.run_dir, clock.wall),
        options.run_dir,
        clock,
        cpu_seconds,
    )
    mix = JobMix(clock, options.run_dir / jobmix.FILE_NAME, config.placement.partitions)
    watcher = QueueWatcher(
        config,
        options.run_dir,
        QueueReader(calls),
        client,
        lambda: read_partitions(calls),
        ended,
        clock,
        nodes=nodes,
        reserve=lambda: reserve_table(config.placement, reservations.rows() if reservations else None),
        shares=sharing.table,
        order_of=MixedOrder(mix).of,
    )
    controller = WeightController(config, options.run_dir, client, nodes, clock, acts, cpu_seconds, mix=mix)
    if options.once:
        snapshot = watcher.poll()
        log.info("users with jobs: %d; calls to Slurm: %s", len(snapshot.usage.uids), calls)
        return
    lock = _only_one(options.run_dir)
    try:
        duties: list[Duty] = [
            acts,
            controller,
            sharing,
            ZoneWait(ConstraintClient(calls), options.run_dir, config.placement.zone_wait_s, clock, acts),
            PriorityController(config, options.config, client, clock, acts, cpu_seconds, nodes),
            UrgentAudit(config.cluster, RunSubsetClient(calls), database, clock, in_background),
            NoticeController(
                config,
                options.config.parent / NOTICES_FILE,
                client,
                Cancellations(config.cluster, JobTerminationClient(calls), acts, clock.wall),
                lambda: database(lambda client: poll_database(client, clock.wall)),
                in_background,
                options.run_dir,
                clock,
            ),
            DecisionShipper(
                options.run_dir,
                clock,
                acts,
                lambda decisions, after: database(lambda client: client.send_decisions(decisions, after)),
                in_background,
            ),
            QuotaReporter(database, in_background, lambda user: read_user_associations(user, calls), clock),
        ]
        if reservations is not None:
            duties.append(reservations)
        _watch(watcher, controller, mix, duties, calls, clock, notifier)
    finally:
        lock.close()


def _reservations(
    config: SiteConfig,
    database: DatabaseConnector,
    calls: CountingRun,
    client: SlurmClient,
    nodes: NodeCache,
    clock: Clock,
    acts: AuditReporter,
) -> ReservationReconciler | None:
    """Return the reconciler of reservations; None if they are not configured."""
    settings = config.placement.reservations
    if settings is None:
        return None
    table = ReservationTable(
        lambda reports, ids: database(lambda client: exchanged(client, reports, ids)), in_background
    )
    zone = ZoneInfo(config.timezone)
    repairer = ReservationRepairer(nodes.within, client.jobs, config.zones, zone, clock)
    return ReservationReconciler(settings, ReservationClient(calls), table, clock, acts, zone, repairer)


def _watch(
    watcher: QueueWatcher,
    controller: WeightController,
    mix: JobMix,
    duties: Sequence[Duty],
    calls: CountingRun,
    clock: Clock,
    notifier: Notifier,
) -> None:
    # Exit even during a call to Slurm, because an answer may take a minute and no data is lost.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    report_at = clock.monotonic() + _REPORT_EVERY_S
    try:
        log.info("slurm-gpuctld %s writes %s", slurm_gpu.__version__, watcher.path)
        # Report readiness even if slurmctld does not answer: slurm-gpuctld cannot fix that.
        notifier.ready()
        while True:
            pause_s = watcher.run_once()
            view = watcher.view
            if view.answered:
                mix.update(view.jobs, view.facts)
            for duty in duties:
                duty.run(replace(view, in_charge=controller.in_charge))
            notifier.turned(clock.monotonic(), f"snapshots written: {watcher.written}")
            _rest(watcher, pause_s, clock)
            if clock.monotonic() >= report_at:
                report_at += _REPORT_EVERY_S
                log.info("snapshots written: %d; calls to Slurm: %s", watcher.written, calls)
    finally:
        # Restoring weights must complete; systemd kills the process if it takes too long.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        notifier.stopping()
        controller.stop()
        log.info("stopped; snapshots written: %d; calls to Slurm: %s", watcher.written, calls)


def _rest(watcher: QueueWatcher, pause_s: float, clock: Clock) -> None:
    """Sleep until the next poll, or until a poll becomes due earlier than planned."""
    began = clock.monotonic()
    while (left_s := watcher.hurried(pause_s) - (clock.monotonic() - began)) > 0:
        time.sleep(min(left_s, _NOTICE_S))


def _only_one(run_directory: Path) -> _Lock:
    """Lock the run directory, so no second process overwrites the snapshots of this process."""
    try:
        return _Lock(run_directory / _LOCK)
    except BlockingIOError:
        raise OutsideError(f"another slurm-gpuctld writes to {run_directory}") from None
    except (FileNotFoundError, PermissionError) as error:
        raise OutsideError(why_not_writable(run_directory)) from error
    except OSError as error:
        raise OutsideError(f"{error.filename or run_directory}: {error.strerror}") from error


class _Lock:
    """A file lock that lasts until `close` is called or the process ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="slurm-gpuctld", description=__doc__)
    add = parser.add_argument
    add("--version", action="version", version=f"slurm-gpuctld {slurm_gpu.__version__}")
    add("--config", type=Path, default=default_path(), metavar="FILE", help="site file (default %(default)s)")
    add(
        "--run-dir",
        type=Path,
        default=Path(os.environ.get("SLURM_GPU_RUN_DIR") or RUN_DIRECTORY),
        metavar="DIR",
        help="directory for snapshot.txt (default %(default)s)",
    )
    add("--foreground", action="store_true", help="log with timestamps, for use outside systemd")
    add("--once", action="store_true", help="poll once, write nothing, report the cost, and exit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
