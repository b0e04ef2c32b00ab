"""Measure lists of ended jobs, usage over time and the listings of commands with many runs in the database.

A lab with slurm-gpudbd and MariaDB contains generated accounting of 14 months that ends now, and usage of
30 days. The requests go through slurm-gpuweb's application to the lab's slurm-gpudbd.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx
import numpy as np
import yaml
from starlette.applications import Starlette

from lab.cluster import Lab
from lab.slurm_config import CLUSTER
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import SiteConfig, load_config
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import cluster_usage
from slurm_gpu.database.usage.sample import BIN_S
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.job.ended import ORDERS, SORTS
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.viewer import Viewer
from tests.reports.filling import fill, insert
from tests.reports.generated import UNTIL, epoch_s, generate

_REPEATS = 5
_DAYS = 30
_MOMENTS = ("submit_s", "eligible_s", "start_s", "end_s", "first_submit_s")
COMMANDS: Mapping[str, Sequence[str]] = {
    "(process start)": ["--version"],
    "jobs": ["jobs"],
    "jobs -a": ["jobs", "-a"],
    "jobs -a -s FAILED": ["jobs", "-a", "-s", "FAILED"],
    "jobs -a -S 7d": ["jobs", "-a", "-S", "7d"],
    "jobs -a --sort end": ["jobs", "-a", "--sort", "end"],
    "jobs -a --sort uGPUcore": ["jobs", "-a", "--sort", "uGPUcore"],
    "jobs -a --sort WAIT_h": ["jobs", "-a", "--sort", "WAIT_h"],
    "jobs -a -p no-such-name": ["jobs", "-a", "-p", "no-such-name"],
    "jobs -a -q no-such-name": ["jobs", "-a", "-q", "no-such-name"],
    "jobs -a --min-gpus 1000": ["jobs", "-a", "--min-gpus", "1000"],
    "job 1000123": ["job", "1000123"],
    "nodes": ["nodes"],
    "audit": ["audit"],
    "notices": ["notices"],
    "reserve list": ["reserve", "list"],
}


@dataclass
class MovingClock:
    """A clock whose monotonic time advances by two minutes at each reading, so that no answer is cached."""

    ticks: itertools.count[int] = field(default_factory=itertools.count)

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return 120.0 * next(self.ticks)

    def boot_id(self) -> str:
        return "boot"


def runs_figures(n_runs: int) -> dict[str, float]:
    """Return the figures for a database with `n_runs` runs, and print them."""
    lab = Lab()
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    try:
        lab.up()
        url = yaml.safe_load(lab.layout.database_file.read_text())["url"]
        database = Database(url)
        users = _fill(database, n_runs)
        config = load_config(lab.layout.site_file)
        pages = {name: _ms(ask) for name, ask in _pages(config, users).items()}
        usage = {days: _usage(config, days) for days in (1, 7, 30)}
        commands = {name: _ms(partial(_run, lab, argv)) for name, argv in COMMANDS.items()}
        database.dispose()
        _print(n_runs, pages, commands)
        for days, (median_ms, n_bytes) in usage.items():
            print(f"usage of {days} days: {median_ms:.0f} ms, {n_bytes:,} bytes packed", flush=True)
    finally:
        lab.down()
    return {
        f"jobs_page_ms_{n_runs}": round(max(median for median, _ in pages.values()), 1),
        f"command_ms_{n_runs}": round(max(median for median, _ in commands.values()), 1),
        "strip_ms": round(usage[1][0], 1),
        "strip_bytes": usage[1][1],
        "strip_ms_30_days": round(usage[30][0], 1),
        "strip_bytes_30_days": usage[30][1],
    }


def _fill(database: Database, n_runs: int) -> Sequence[str]:
    """Insert runs that end now, and usage; return the users with the most and with the fewest runs."""
    accounting = generate(n_runs * 100 // 104)  # it adds 4 % of other jobs
    later_s = time.time() - epoch_s(*UNTIL)
    runs = accounting.runs
    for name in _MOMENTS:
        if name in runs:
            runs[name] = np.round(np.asarray(runs[name], float) + later_s)
    runs["cluster"] = [CLUSTER] * len(accounting)
    runs["job_id"] = runs["job_id"] + 1_000_000
    fill(database, accounting)
    last_s = int(time.time() // BIN_S - 2) * BIN_S
    names = ["cluster", "from_s", "n_samples", "gpus", "allocated", "busy", "waiting_jobs", "waiting_gpus"]
    dice = np.random.default_rng(1)
    bins = _DAYS * 86_400 // BIN_S
    rows = [
        (CLUSTER, last_s - place * BIN_S, 5, 10_240.0, allocated, 0.8 * allocated, jobs, 4.2 * jobs)
        for place, allocated, jobs in zip(
            range(bins),
            dice.normal(9_000, 300, bins).tolist(),
            dice.exponential(300, bins).tolist(),
            strict=True,
        )
    ]
    with database.engine.begin() as connection:  # the lab's slurm-gpudbd has recorded some minutes
        connection.execute(cluster_usage.delete())
    insert(database, "cluster_usage", names, rows)
    names_of_users, counts = np.unique(np.asarray(runs["user"]), return_counts=True)
    return str(names_of_users[np.argmax(counts)]), str(names_of_users[np.argmin(counts)])


def _pages(config: SiteConfig, users: Sequence[str]) -> dict[str, Callable[[], None]]:
    """Return requests for pages of ended jobs: each order, the next pages, searches, and users' own pages."""
    busiest, rarest = users
    found: dict[str, Callable[[], None]] = {}

    def add(name: str, viewer: Viewer, **query: str) -> None:
        app = _app(config, viewer)

        def ask() -> None:
            _get(app, "/api/v1/runs?" + "&".join(f"{key}={value}" for key, value in query.items()))

        found[name] = ask

    operator, user = Viewer("root", 0, operator=True), Viewer(busiest, None, operator=False)
    for sort, order in itertools.product(SORTS, ORDERS):
        add(f"sort={sort} {order}", operator, sort=sort, order=order)
        cursor = _get(_app(config, operator), f"/api/v1/runs?sort={sort}&order={order}").json()["cursor"]
        add(f"sort={sort} {order}, next page", operator, sort=sort, order=order, cursor=cursor)
    for what in (busiest, rarest, "vision", "pytorch", "no-such-name", "1000123"):
        add(f"find={what}", operator, find=what)
    for sort in SORTS:
        add(f"find=no-such-name, sort={sort}", operator, find="no-such-name", sort=sort)
    for sort in SORTS:
        add(f"own runs, sort={sort}", user, sort=sort)
    return found


def _app(config: SiteConfig, viewer: Viewer) -> Starlette:
    def connect() -> DatabaseClient:
        return DatabaseClient(config, needs_all=True)

    return make_app(RouteContext(Board(), lambda _: viewer, connect, MovingClock()))


def _get(app: Starlette, path: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://web", timeout=60
        ) as client:
            return await client.get(path, headers={"Accept-Encoding": "gzip"})

    answer = asyncio.run(ask())
    answer.raise_for_status()
    return answer


def _usage(config: SiteConfig, days: int) -> tuple[float, int]:
    """Return the median time in ms of a request for usage, and the size of the compressed answer."""
    app, path = _app(config, Viewer("root", 0, operator=True)), f"/api/v1/usage?days={days}"
    median_ms, _ = _ms(lambda: _get(app, path))
    return median_ms, int(_get(app, path).headers["content-length"])


def _run(lab: Lab, argv: Sequence[str]) -> None:
    lab.run_as("carol", ["slurm-gpu", *argv])


def _ms(act: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the maximum time in ms, without the first time."""
    took = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        act()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took[1:]), max(took[1:])


def _print(
    n_runs: int, pages: Mapping[str, tuple[float, float]], commands: Mapping[str, tuple[float, float]]
) -> None:
    print(f"{n_runs:,} runs: median and maximum of {_REPEATS} requests in ms")
    for name, (median, most) in {**pages, **commands}.items():
        print(f"  {name:<32} {median:8.0f} {most:8.0f}")
