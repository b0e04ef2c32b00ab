"""slurm-gpudbd: stores what the nodes measure beside Slurm's accounting, and answers questions about it."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import slurm_gpu
from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.config import SiteConfig, load_config
from slurm_gpu.daemonlog import log_to_stderr
from slurm_gpu.database.app import make_app
from slurm_gpu.database.arrivals import Arrivals
from slurm_gpu.database.engine import Database, UnusableDatabaseError
from slurm_gpu.database.identity import Authenticator
from slurm_gpu.database.importer import Importer
from slurm_gpu.database.intake import Intake
from slurm_gpu.database.nodememory import LiveBoard, Wants
from slurm_gpu.database.nodeperiods import Places
from slurm_gpu.database.pulse import Answering, Pulse
from slurm_gpu.database.server import listen_tcp, listen_unix, serve
from slurm_gpu.database.services import Services
from slurm_gpu.database.settings import default_address, load_settings, parse_address
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.database.upgrading import make_ready
from slurm_gpu.database.upkeep import Upkeep
from slurm_gpu.errors import DatabaseError, exit_code_of
from slurm_gpu.notify import Notifier
from slurm_gpu.slurm.connect import connect

log = logging.getLogger("slurm-gpudbd")

_RETRY_S = 2.0
_SWITCH_S = 0.0005
"""For so long each step of an answer waits for Python's lock while another thread computes. One does so for a
second and more when Slurm tells of 10,000 jobs: with the usual 5 ms that holds up as many nodes."""
_GARBAGE_AFTER = 10_000
"""So many new objects bring about a search for cycles. With the usual 700, thousands of rows on their way
into the database are gone through again and again, which takes an eighth of a first import."""
_TABLES_WITHIN_S = 600.0
"""To make the tables of an empty database, on a slow disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; returns the exit code."""
    options = make_parser().parse_args(argv)
    os.umask(0o077)  # SQLite's files hold what users may not see of each other
    log_to_stderr(for_people=options.foreground or options.once)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(
        logging.ERROR
    )  # it warns of each request that is none, whoever sends it
    return exit_code_of("slurm-gpudbd", lambda: _run(options))


def tune_python() -> None:
    """For many threads, of which one may have a million rows to store."""
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # what was imported stays
    gc.set_threshold(_GARBAGE_AFTER)


def _run(options: argparse.Namespace) -> None:
    tune_python()
    config = load_config(options.config)
    settings = load_settings(options.database_config)
    listen = settings.listen or default_address(config.database)
    if options.listen is not None:
        listen = parse_address(options.listen)
    notifier = Notifier(os.environ)
    clock = SystemClock()
    database = Database(settings.url)
    view = SlurmView(connect(), clock)
    places = Places.of(config)
    importer = Importer(
        database,
        view,
        clock,
        config.cluster,
        config.import_interval_s,
        config.sampling.min_coverage,
        Upkeep(database, view, clock, places, config.retention),
        places,
    )
    if options.once:
        make_ready(database)
        n_changed = importer.run_once()
        log.info("imported %d new or changed runs, and matched the records", n_changed)
        return
    stop = threading.Event()
    # Until the server takes over, an end is an end; nothing is under way yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _make_ready_when_there(database, notifier)
    sockets = [listen_tcp(listen), listen_unix(options.socket or config.database_socket)]
    services = _services(config, database, view, importer, clock, places)
    worker = threading.Thread(target=importer.run_until, args=(stop,), name="import", daemon=True)
    worker.start()
    log.info(
        "slurm-gpudbd %s serves cluster %s from %s", slurm_gpu.__version__, config.cluster, database.server()
    )
    answering = Answering(make_app(services), clock)
    importer.gives_way = answering.is_behind
    pulse = Pulse(notifier, clock, (*answering.lanes, services.intake.storing), importer, worker.is_alive)

    def stopping() -> None:
        notifier.stopping()
        services.stopping.set()

    try:
        serve(answering, sockets, stopping, pulse.beat if notifier.listens else None)
    finally:
        stop.set()
        # A pass under way may be waiting for Slurm; what it has not committed, the next one reads again.
        worker.join(timeout=1)
    log.info("stopped")


def _services(
    config: SiteConfig,
    database: Database,
    view: SlurmView,
    importer: Importer,
    clock: Clock,
    places: Places,
) -> Services:
    def slurm_uid() -> int | None:
        settings = view.settings()
        return None if settings is None else settings.slurm_user_uid

    board, wants, arrivals = LiveBoard(clock), Wants(clock), Arrivals(clock)
    return Services(
        cluster=config.cluster,
        database=database,
        authenticator=Authenticator(config.operators, slurm_uid, clock, config.munge_socket),
        intake=Intake(database, view, config.cluster, clock, board, wants, arrivals),
        importer=importer,
        view=view,
        arrivals=arrivals,
        board=board,
        wants=wants,
        clock=clock,
        places=places,
        reservations=config.placement.reservations,
    )


def _make_ready_when_there(database: Database, notifier: Notifier) -> None:
    """MariaDB may start after us; a database that is there and cannot be used ends the daemon."""
    waiting = False
    while True:
        try:
            # Only once it answers: one that is away is waited for, and is told of otherwise.
            server = database.server()
            notifier.starting(f"brings the tables up to date: {server}", _TABLES_WITHIN_S)
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
    """What the command line may say."""
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
        "--foreground", action="store_true", help="run by hand: log with times, not for journald"
    )
    parser.add_argument("--once", action="store_true", help="import and match once, then exit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
