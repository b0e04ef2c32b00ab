"""slurm-gpudbd stores the measurements of the nodes together with Slurm's accounting, and serves both."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import slurm_gpu
from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.config.site import SiteConfig, load_config
from slurm_gpu.config.value_types import listen_option
from slurm_gpu.daemon.heap import giving_back
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.daemon.systemd import Notifier
from slurm_gpu.database.accounting.import_thread import ImportThread, make_importer, tune_python
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.app import make_app
from slurm_gpu.database.http.rate_limits import CallerBounds
from slurm_gpu.database.http.server import make_server
from slurm_gpu.database.ingest.body_budget import BodyBudget, BoundedBodies
from slurm_gpu.database.ingest.heartbeat import Answering, Heartbeat, PendingWork
from slurm_gpu.database.ingest.ingest_server import IngestServer
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.posts import Posts
from slurm_gpu.database.ingest.worker_pool import Workers
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.quota_board import QuotaBoard
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.services import Services
from slurm_gpu.database.settings import DaemonSettings, default_address, load_settings
from slurm_gpu.database.storage.engine import Database, UnusableDatabaseError
from slurm_gpu.database.storage.upgrade import make_ready
from slurm_gpu.database.usage.recorder import recording_usage
from slurm_gpu.database.verdicts.thread import watching
from slurm_gpu.errors import DatabaseError, exit_code_of
from slurm_gpu.http.identity import Authenticator
from slurm_gpu.http.server import run
from slurm_gpu.http.sockets import listen_tcp, listen_unix
from slurm_gpu.http.web_reader import warn_of_unknown_user
from slurm_gpu.slurm.connect import connect

log = logging.getLogger("slurm-gpudbd")

_RETRY_S = 2.0
# Work in progress must end well within the unit's TimeoutStopSec; after that, systemd reports a failure.
_END_WITHIN_S = 5.0
# Creating the tables of an empty database may take this long on a slow disk.
_TABLES_WITHIN_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; return the exit code."""
    options = make_parser().parse_args(argv)
    os.umask(0o077)  # SQLite's files contain data that other users may not see
    log_to_stderr(for_people=options.foreground or options.once)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(
        logging.ERROR
    )  # uvicorn warns of each invalid request, from any sender
    return exit_code_of("slurm-gpudbd", lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    tune_python()
    config = load_config(options.config)
    settings = load_settings(options.database_config)
    listen = settings.listen or default_address(config.database)
    if options.listen is not None:
        listen = listen_option(options.listen)
    notifier = Notifier(os.environ)
    clock = SystemClock()
    database = Database(settings.url)
    view = SlurmView(connect(), clock)
    if options.once:
        make_ready(database)
        n_changed = make_importer(config, database, view, clock).run_once()
        log.info("imported %d new or changed runs and matched records to them", n_changed)
        return
    # Before the server is ready, no work is in progress, so SIGTERM ends the process immediately.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _make_ready_when_there(database, notifier)
    warn_of_unknown_user(settings.web)
    sockets = [listen_tcp(listen), listen_unix(options.socket or config.database_socket)]
    memory = LiveState.fresh(clock)
    workers = Workers(
        settings.workers, config, settings.url, clock, memory, sockets[0], for_people=options.foreground
    )
    importer = make_importer(config, database, view, clock)
    importing = ImportThread(importer)
    services = _services(config, settings, database, view, importer, clock, memory)
    log.info(
        "slurm-gpudbd %s serves cluster %s from %s", slurm_gpu.__version__, config.cluster, database.server()
    )
    bodies = BodyBudget(clock, 1 / (settings.workers + 1))
    intake = Intake(database, view, config.cluster, clock, memory)
    posts = Posts(services.authenticator, intake, clock)
    answering = Answering(BoundedBodies(make_app(services, posts), bodies), clock)
    ingest_server = IngestServer(posts.take, answering.records, bodies)
    stall_detectors: tuple[PendingWork, ...] = (*answering.stall_detectors, intake.storing, workers)
    heartbeat = Heartbeat(notifier, clock, stall_detectors, importer, importing.runs)

    def stopping() -> None:
        notifier.stopping()
        services.stopping.set()
        workers.end()
        _end_at_last()

    beat = heartbeat.beat if notifier.listens else None
    server = make_server(answering, ingest_server, stopping)
    with (
        watching(services),
        recording_usage(services),
        giving_back(),
        importing.running(answering.is_behind),
        workers.running(server.adopt),
    ):
        asyncio.run(run(server, sockets, beat))
    log.info("stopped")


def _end_at_last() -> None:
    """Exit within _END_WITHIN_S even if a thread is still waiting, for example for a database that hangs.

    Data that was not stored has not been acknowledged, so slurm-gpud sends it again.
    """

    def end() -> None:
        log.warning("work in progress did not end within %g s and is dropped", _END_WITHIN_S)
        os._exit(0)

    timer = threading.Timer(_END_WITHIN_S, end)
    timer.daemon = True
    timer.start()


def _services(
    config: SiteConfig,
    settings: DaemonSettings,
    database: Database,
    view: SlurmView,
    importer: Importer,
    clock: Clock,
    memory: LiveState,
) -> Services:
    def slurm_uid() -> int | None:
        slurm = view.settings()
        return None if slurm is None else slurm.slurm_user_uid

    return Services(
        cluster=config.cluster,
        database=database,
        authenticator=Authenticator(config.operators, slurm_uid, clock, config.munge_socket, settings.web),
        importing=importer,
        view=view,
        memory=memory,
        quotas=QuotaBoard(clock),
        clock=clock,
        bounds=CallerBounds(settings.per_user, clock),
        places=Places.of(config),
        min_coverage=config.sampling.min_coverage,
        reservations=config.placement.reservations,
    )


def _make_ready_when_there(database: Database, notifier: Notifier) -> None:
    """Wait for the database and update its tables; raise UnusableDatabaseError if it is unusable.

    MariaDB may start later than slurm-gpudbd.
    """
    waiting = False
    while True:
        try:
            # Announce the update only after the database has answered, because this loop repeats until then.
            server = database.server()
            notifier.starting(f"updating the tables: {server}", _TABLES_WITHIN_S)
            make_ready(database)
        except UnusableDatabaseError:
            raise
        except DatabaseError as error:
            if not waiting:
                log.warning("%s; trying again every %g s", error, _RETRY_S)
            waiting = True
            threading.Event().wait(_RETRY_S)
        else:
            return


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(prog="slurm-gpudbd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"slurm-gpudbd {slurm_gpu.__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="slurm-gpu.yaml (default: /etc/slurm-gpu)"
    )
    parser.add_argument("--database-config", type=Path, metavar="FILE", help="slurm-gpudbd.yaml, mode 0600")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="TCP address (default: as in slurm-gpudbd.yaml)"
    )
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="Unix socket (default: as in slurm-gpu.yaml)"
    )
    parser.add_argument(
        "--foreground", action="store_true", help="log with timestamps, for use outside systemd"
    )
    parser.add_argument("--once", action="store_true", help="import and match once, then exit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
