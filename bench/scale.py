"""Measure one slurm-gpudbd with ten thousand nodes of eight GPUs: throughput, latency and cost.

    .venv/bin/python bench/scale.py [--nodes 10000] [--minutes 10] [--period 300] [--workers 1]
        [--directory DIR] [--json]

slurm-gpudbd and MariaDB run as installed. Each node posts from its own address with its own MUNGE credential,
as in docs/contracts.md: live values every 10 s, records every 300 ± 60 s (--period ± 60) and when its job
ends. Finally, all jobs end at once, and their records in the database are counted. scale_load.c replaces
the nodes and sends records of slurm-gpud (scale_records.py); scale_slurm.py replaces Slurm's commands.

Processor times are separate, because the nodes and their munged run on the same cores. DIR must be on the
disk of the database: MariaDB waits for it at each commit. Every half minute, a line on stderr reports the
progress.
With --json the last line is {"live_posts_per_s": …, "records_per_s": …, "burst_records_per_s": …, "p99_ms":
…, "growth_gb_per_million_job_gpus": …, …}. The exit code is 1 if a record was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
from sqlalchemy import create_engine, text

from bench import arguments
from bench.scale_bodies import FINAL_SEQ, JITTER_S, PERIOD_S, address, name, write_plan
from bench.scale_progress import RESULT, printed_progress
from bench.scale_records import patterns
from bench.scale_slurm import CLUSTER, GPUS, SimulatedJob, install, write_jobs
from tests.database.servers import MariaDB, running_mariadb, running_munged

ROOT = Path(__file__).resolve().parent.parent
FIRST_PER_S = 150.0
"""Number of nodes per second that send their first shipment."""
AFTER_S = 300.0
"""The time limit in seconds for the records of all jobs."""
MATCHED_WITHIN_S = 600.0
MARIADB = ("--innodb-buffer-pool-size=2G", "--innodb-log-file-size=2G", "--innodb-io-capacity=2000")
_OURS = "slurm-gpudbd", "worker"
_TABLES = "run_device", "run_host", "run"


@dataclass(frozen=True)
class Bench:
    """All running processes, and those whose cost is measured."""

    directory: Path
    database: MariaDB
    url: str
    port: int
    munge_socket: Path
    pids: Mapping[str, int]

    @property
    def log(self) -> Path:
        """Return the log of slurm-gpudbd."""
        return self.directory / "slurm-gpudbd.log"


@dataclass(frozen=True)
class ProcessorTime:
    """CPU time of a process and its ended children."""

    at_s: float
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessorTime:
        """Return the time so far."""
        times = psutil.Process(pid).cpu_times()
        own_s, children_s = times.user + times.system, times.children_user + times.children_system
        return cls(time.monotonic(), own_s + children_s)

    def core_pct(self, before: ProcessorTime) -> float:
        """Return the percentage of a core since then."""
        return round(100 * (self.cpu_s - before.cpu_s) / (self.at_s - before.at_s), 1)


@contextlib.contextmanager
def running(directory: Path, jobs: Sequence[SimulatedJob], n_workers: int) -> Iterator[Bench]:
    """Run slurm-gpudbd with its workers, MariaDB, and a munged for each side with a shared key."""
    install(directory / "slurm", [(name(n), address(n)) for n in range(len(jobs))])
    write_jobs(directory / "slurm", jobs, over=False)
    for place in ("maria", "munge", "nodes-munge"):
        (directory / place).mkdir()
    with contextlib.ExitStack() as stack:
        # Two munged daemons separate the costs of both sides; only the decoding one stores used credentials.
        munge = stack.enter_context(running_munged(directory / "munge"))
        key = (directory / "munge" / "key").read_bytes()
        nodes_munge = stack.enter_context(running_munged(directory / "nodes-munge", key))
        maria = stack.enter_context(running_mariadb(directory / "maria", *MARIADB))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        site = f"cluster: {CLUSTER}\ndatabase: http://127.0.0.1:{port}\nmunge_socket: {munge}\n"
        (directory / "site.yaml").write_text(site + f"database_socket: {directory}/gpudbd.sock\n")
        url = maria.fresh()
        private = directory / "slurm-gpudbd.yaml"
        private.write_text(f"url: {url}\nworkers: {n_workers}\n")
        private.chmod(0o600)
        command = [sys.executable, "-m", "slurm_gpu.database.main", f"--config={directory}/site.yaml"]
        command += [f"--database-config={private}", "--foreground"]
        environment = os.environ | {"PATH": f"{directory}/slurm:{os.environ['PATH']}"}
        with (directory / "slurm-gpudbd.log").open("wb") as log:
            daemon = subprocess.Popen(command, env=environment, stderr=log, cwd=ROOT)
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        _wait_until_it_listens(port, daemon, directory / "slurm-gpudbd.log")
        pids = {"slurm-gpudbd": daemon.pid, "mariadbd": maria.pid, **_workers(daemon.pid, n_workers)}
        pids |= {"munged": _munged(munge), "munged of the nodes": _munged(nodes_munge)}
        yield Bench(directory, maria, url, port, nodes_munge, pids)


def _workers(daemon: int, n_workers: int) -> dict[str, int]:
    """Wait until all workers run; slurm-gpudbd starts them as it begins to listen."""
    until_s = time.monotonic() + 30
    while True:
        children = psutil.Process(daemon).children()
        found = [child.pid for child in children if "slurm_gpu.database.ingest.worker" in child.cmdline()]
        if len(found) == n_workers:
            return {f"worker {n}": pid for n, pid in enumerate(found, 1)}
        if time.monotonic() > until_s:
            raise SystemExit(f"{len(found)} of {n_workers} workers run after 30 s")
        time.sleep(0.1)


def _munged(place: Path) -> int:
    return int((place.parent / "pid").read_text())


def _wait_until_it_listens(port: int, daemon: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if daemon.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"slurm-gpudbd does not listen:\n{log.read_text()}")
        time.sleep(0.1)


def build_load(directory: Path) -> Path:
    """Compile the program that posts."""
    program = directory / "scale_load"
    source = Path(__file__).parent / "scale_load.c"
    command = ["cc", "-O2", "-o", str(program), str(source), "-l:libmunge.so.2"]
    subprocess.run(command, check=True)
    return program


def measure(
    bench: Bench,
    load: Path,
    jobs: Sequence[SimulatedJob],
    plan: Path,
    ramp_s: float,
    steady_s: float,
) -> dict[str, Any]:
    """Post, and return the results."""
    results = bench.directory / "results"
    until_s = ramp_s + steady_s + AFTER_S
    command = [str(load), str(plan), str(results), str(bench.munge_socket), str(bench.port), str(until_s)]
    began = time.monotonic()
    with (
        printed_progress(results, [pid for who, pid in bench.pids.items() if who.startswith(_OURS)]),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            pids = {**bench.pids, "the nodes": process.pid}
            _sleep_until(began + ramp_s, process)
            before = _costs(pids)
            _sleep_until(began + ramp_s + steady_s, process)
            steady = _costs(pids)
            write_jobs(bench.directory / "slurm", jobs, over=True)
            process.send_signal(signal.SIGUSR1)
            at_burst = _costs(bench.pids)
            assert process.stdout is not None
            burst_s = float(process.stdout.readline().split()[1])
            said = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            raise SystemExit(f"the nodes could not post:\n{bench.log.read_text()[-3000:]}")
    answered = np.fromfile(results, RESULT)
    found = _stored(bench, len(jobs))
    of_steady = _of_steady(answered, ramp_s, ramp_s + steady_s)
    n_posts = of_steady["live_posts_per_s"] * steady_s
    return {
        **of_steady,
        "cpu_ms_a_post": {
            who: round(1000 * (after.cpu_s - before[who].cpu_s) / n_posts, 3) for who, after in steady.items()
        },
        **_of_burst(answered, burst_s, len(jobs)),
        "failures": said.strip(),
        "core_pct": {who: after.core_pct(before[who]) for who, after in steady.items()},
        "most_rss_mib": {who: _most_rss_mib(pid) for who, pid in bench.pids.items()},
        **found,
        "cpu_s_until_matched": {
            who: round(ProcessorTime.of(pid).cpu_s - at_burst[who].cpu_s, 1)
            for who, pid in bench.pids.items()
        },
    }


def _costs(pids: Mapping[str, int]) -> dict[str, ProcessorTime]:
    return {who: ProcessorTime.of(pid) for who, pid in pids.items()}


def _most_rss_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def _sleep_until(at_s: float, process: subprocess.Popen[str]) -> None:
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 1.0))
        if process.poll() is not None:
            raise SystemExit("the nodes stopped")


def _of_steady(answered: Any, from_s: float, to_s: float) -> dict[str, Any]:
    """Return the posts that were due or answered in that time."""
    due = answered[(answered["due_s"] >= from_s) & (answered["due_s"] < to_s)]
    done = answered[(answered["done_s"] >= from_s) & (answered["done_s"] < to_s)]
    took_ms = (due["done_s"] - due["due_s"]) * 1000
    of_records = took_ms[due["n_records"] > 0]
    seconds = to_s - from_s
    return {
        # Posts with records contain live values, too.
        "live_posts_per_s": round(len(done) / seconds, 1),
        "records_per_s": round(float(np.sum(done["stored"][done["n_records"] > 0] > 0) * GPUS) / seconds, 1),
        "p50_ms": round(float(np.percentile(took_ms, 50)), 1),
        "p99_ms": round(float(np.percentile(took_ms, 99)), 1),
        "max_ms": round(float(took_ms.max()), 1),
        "records_p99_ms": round(float(np.percentile(of_records, 99)), 1) if len(of_records) else None,
        "sent_again": int(np.sum(due["tries"] > 1)),
    }


def _of_burst(answered: Any, burst_s: float, n_jobs: int) -> dict[str, Any]:
    last = answered[(answered["due_s"] >= burst_s) & (answered["n_records"] > 0)]
    took_s = float(last["done_s"].max()) - burst_s
    due = (answered["due_s"] >= burst_s) & (answered["due_s"] < burst_s + took_s)
    live = answered[due & (answered["n_records"] == 0)]
    return {
        "burst_live_posts_per_s": round(len(live) / took_s, 1),
        "burst_live_p99_ms": round(float(np.percentile(live["done_s"] - live["due_s"], 99)) * 1000, 1),
        "burst_s": round(took_s, 2),
        "burst_records_per_s": round(GPUS * len(last) / took_s, 1),
        "burst_answered": GPUS * len(last),
        "burst_sent_again": int(np.sum(last["tries"] > 1)),
        "rejected": int(answered["rejected"].sum()),
    }


def _stored(bench: Bench, n_jobs: int) -> dict[str, Any]:
    """Return the matched contents of the database, and its size."""
    engine = create_engine(bench.url)
    began = time.monotonic()
    final = f"seq = {FINAL_SEQ} AND final"
    tables = {
        "final_records": f"run_device WHERE {final}",
        "final_hosts": f"run_host WHERE {final}",
        "matched": f"run_device WHERE {final} AND run_id IS NOT NULL AND NOT match_due",
        "runs": "run WHERE end_s IS NOT NULL AND NOT derive_due AND ugpucore IS NOT NULL",
    }
    questions = {key: f"SELECT COUNT(*) FROM {table}" for key, table in tables.items()}
    while True:
        with engine.connect() as connection:
            found = {key: int(connection.execute(text(sql)).scalar_one()) for key, sql in questions.items()}
        whole = found["matched"] == GPUS * n_jobs and found["runs"] == n_jobs
        if whole or time.monotonic() - began > MATCHED_WITHIN_S:
            break
        time.sleep(1)
    database = bench.url.partition("?")[0].rpartition("/")[2]
    with engine.connect() as connection:
        connection.execute(text(f"FLUSH TABLES {', '.join(_TABLES)} FOR EXPORT"))
        place = bench.database.root / "data" / database
        sizes = {name: (place / f"{name}.ibd").stat().st_blocks * 512 for name in _TABLES}
        connection.execute(text("UNLOCK TABLES"))
    engine.dispose()
    growth = sum(sizes.values()) / (GPUS * n_jobs) * 1e6 / 1e9
    return {
        **found,
        "lost": GPUS * n_jobs - found["final_records"],
        "matched_after_s": round(time.monotonic() - began, 1),
        "growth_gb_per_million_job_gpus": round(growth, 3),
        "bytes_per_job_gpu": {name: round(size / (GPUS * n_jobs)) for name, size in sizes.items()},
    }


def show(values: Mapping[str, Any], n_nodes: int, minutes: float) -> None:
    """Print a table."""
    cpus, load = os.cpu_count(), os.getloadavg()[1]
    machine = f"{cpus} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, load {load:.1f}"
    print(f"{n_nodes} nodes of {GPUS} GPUs, {minutes:g} min; {machine}")
    for key, value in values.items():
        shown = (
            ", ".join(f"{who} {item}" for who, item in value.items()) if isinstance(value, dict) else value
        )
        print(f"{key:>32}  {shown}")


def main() -> int:
    """Run the benchmark; return 1 if a record was lost."""
    parser = argparse.ArgumentParser(description="One slurm-gpudbd for many nodes.")
    parser.add_argument("--nodes", type=arguments.number(1, 60_000), default=10_000, help="default 10000")
    parser.add_argument("--minutes", type=float, default=10.0, help="of steady load (default 10)")
    parser.add_argument(
        "--period",
        type=arguments.number(2 * int(JITTER_S), 3600),
        default=int(PERIOD_S),
        help=f"seconds between a node's records, ± {JITTER_S:.0f} (default {PERIOD_S:.0f})",
    )
    parser.add_argument("--workers", type=arguments.number(0, 8), default=1, help="default 1")
    parser.add_argument(
        "--directory", type=arguments.directory, help="directory of the database (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="sgb-", dir=options.directory) as made:
        directory = Path(made)
        print("building the shipments of the nodes ...", file=sys.stderr)
        load, plan = build_load(directory), directory / "plan"
        ramp_s, steady_s = options.nodes / FIRST_PER_S, options.minutes * 60
        jobs = write_plan(
            plan, patterns(), options.nodes, int(time.time()), ramp_s, ramp_s + steady_s, options.period
        )
        with running(directory, jobs, options.workers) as bench:
            print(f"posting for {options.minutes:g} minutes ...", file=sys.stderr)
            values = measure(bench, load, jobs, plan, ramp_s, steady_s)
        log = (directory / "slurm-gpudbd.log").read_text()
    print(log[-2000:], file=sys.stderr)
    show(values, options.nodes, options.minutes)
    if options.json:
        print(json.dumps(values))
    return 1 if values["lost"] or values["rejected"] or values["matched"] != GPUS * options.nodes else 0


if __name__ == "__main__":
    sys.exit(main())
