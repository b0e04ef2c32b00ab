"""Measure time and memory of importing years of Slurm's accounting into MariaDB.

    .venv/bin/python bench/importing.py [--rows 1000000] [--sqlite] [--directory DIR] [--json]

The importer itself runs a first import, from an empty database to the last derived column, then two passes
without new rows. A program that prints generated rows (accounting.py) replaces sacct, so that no slurmdbd
with a million jobs is required or measured. The rest is real: sacct's output is read from a pipe and parsed,
and MariaDB writes to disk with its defaults, except for a larger buffer pool.

With --json the last line is {"rows", "import_s", "rows_per_s", "pass_s", "rss_mib", "database"}.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from sqlalchemy import func, select

from bench import accounting, arguments
from slurm_gpu.clock import SystemClock
from slurm_gpu.database.accounting.import_thread import tune_python
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run
from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.commands import CommandClient
from tests.database.samples import node
from tests.database.servers import running_mariadb

CLUSTER = "neuron"
MARIADB = ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=256M")


class GeneratedSlurm(CommandClient):
    """The real command backend without slurmctld: it reports nodes, but no jobs in the queue."""

    def nodes(self) -> Sequence[SlurmNode]:
        """Return the nodes of the rows."""
        return [node(number) for number in range(1, accounting.N_NODES + 1)]

    def jobs(self, job_ids: object = None) -> Sequence[QueuedJob]:
        """Return no jobs."""
        return []


def main() -> None:
    """Generate, import and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=arguments.number(1), default=1_000_000, help="default 1000000")
    parser.add_argument("--sqlite", action="store_true", help="use SQLite instead of MariaDB")
    parser.add_argument("--directory", type=arguments.directory, help="directory of rows and database")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="sgi-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with _database(directory, sqlite=options.sqlite) as (database, server):
            found = measure(directory, database, server, options.rows)
    if options.json:
        print(json.dumps(found))


@contextmanager
def _database(directory: Path, *, sqlite: bool) -> Iterator[tuple[Database, psutil.Process | None]]:
    """Yield an empty database, and the process of its server."""
    if sqlite:
        database = Database(f"sqlite:///{directory / 'database' / 'x.db'}")
        database.upgrade()
        yield database, None
        database.dispose()
        return
    root = directory / "maria"
    root.mkdir()
    with running_mariadb(root, *MARIADB) as server:
        database = Database(server.fresh())
        database.upgrade()
        yield database, psutil.Process(server.pid)
        database.dispose()


def measure(
    directory: Path, database: Database, server: psutil.Process | None, n_rows: int
) -> dict[str, object]:
    """Import `n_rows`, run two passes without new rows, and return the values."""
    began = time.monotonic()
    # Rows are generated in a separate process, so that its memory does not count.
    made = multiprocessing.get_context("spawn").Process(
        target=accounting.generate, args=(directory, n_rows, CLUSTER)
    )
    made.start()
    made.join()
    print(f"{n_rows} rows generated in {time.monotonic() - began:.1f} s", flush=True)
    tune_python()  # as slurm-gpudbd does
    client = GeneratedSlurm(environ={"PATH": str(_program(directory))})
    clock = SystemClock()
    importer = Importer(database, SlurmView(client, clock), clock, CLUSTER, 60.0)
    before, server_before_s = os.times(), _processor_s(server)
    began = time.monotonic()
    n_changed = importer.run_once()
    import_s = time.monotonic() - began
    after, server_s = os.times(), _processor_s(server) - server_before_s
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with database.reading() as connection:
        stored, due = connection.execute(select(func.count(), func.sum(run.c.derive_due))).one()
    if stored != n_rows or n_changed < n_rows or due:
        raise SystemExit(f"{stored} of {n_rows} rows are stored, {due} not derived")
    own_s = after.user + after.system - before.user - before.system
    sacct_s = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"first import into {database.server()}: {import_s:.1f} s, {n_rows / import_s:,.0f} rows/s; "
        f"processor {own_s:.1f} s here, {server_s:.1f} s of the server, "
        f"{sacct_s:.1f} s of the replacement for sacct; {rss_mib:.0f} MiB",
        flush=True,
    )
    passes = []
    for _ in range(2):
        began = time.monotonic()
        importer.run_once()
        passes.append(time.monotonic() - began)
    print(f"then a pass without new rows: {passes[1] * 1000:.0f} ms")
    return {
        "rows": n_rows,
        "import_s": round(import_s, 2),
        "rows_per_s": round(n_rows / import_s),
        "pass_s": round(passes[1], 4),
        "rss_mib": round(rss_mib),
        "database": database.server(),
    }


def _processor_s(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


def _program(directory: Path) -> Path:
    """Create a directory with a program `sacct`."""
    place = directory / "bin"
    place.mkdir()
    program = place / "sacct"
    command = f"{sys.executable} -I -S {Path(accounting.__file__).resolve()} {directory}"
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return place


if __name__ == "__main__":
    main()
