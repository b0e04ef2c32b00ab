"""Generate 14 months of accounting of a GPU cluster, without code of slurm_gpu.

The data has the statistics of KISTI's Neuron: 39,470 jobs with GPUs of 483 users. The shares of run time are
pytorch 38.28 %, python 25.28 %, tensorflow 19.29 % and caffe 0.50 %. Jobs on several nodes make up 47 % of
pytorch's jobs and 38 % of tensorflow's. Jobs of both use 1–8 nodes; pytorch jobs use 2–16 GPUs, tensorflow
jobs 2–40. Most jobs do not wait; the longest waits are 12 and 8 h, and the longest run times 120 and 526 h.
There are also jobs without GPUs, and jobs that were cancelled while waiting.

No GPU is allocated twice: jobs of one shape run one after the other on their own GPUs, called a track.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

TIMEZONE = "Asia/Seoul"
SINCE, UNTIL = (2025, 1, 1), (2026, 3, 1)
N_JOBS, N_USERS, N_ACCOUNTS, N_TEAMS = 39_470, 483, 40, 12
RATES = {"a100": 1.2, "v100": 0.7, "p100": 0.25}
_GPUS_OF_NODE = {"a100": 8, "v100": 4, "p100": 2}
_CPUS_OF_NODE, _MIB_OF_NODE = 64, 512_000
_NODES_OF_ZONE = 10
_BUSY = 0.55


@dataclass(frozen=True)
class App:
    """The properties of an application's jobs; `shapes` are (nodes, GPU/1000) on one node, and on several."""

    name: str | None
    field: str | None
    of_jobs: float
    of_run_time: float
    max_run_h: float
    max_wait_h: float
    multi_node: float
    one: tuple[tuple[int, int], ...]
    several: tuple[tuple[int, int], ...]
    core: tuple[float, float]
    memory: tuple[float, float]


_DL = "deep learning"
APPS = (
    App(
        "pytorch",
        _DL,
        0.30,
        0.3828,
        120,
        12,
        0.47,
        ((1, 2000), (1, 4000), (1, 8000)),
        ((2, 4000), (2, 8000), (4, 8000), (4, 16000), (8, 16000)),
        (1.2, 1.4),
        (1.5, 2.0),
    ),
    App(
        "python",
        "general",
        0.30,
        0.2528,
        240,
        6,
        0.10,
        ((1, 1000), (1, 2000), (1, 4000)),
        ((2, 2000), (2, 4000)),
        (1.0, 2.5),
        (1.0, 3.0),
    ),
    App(
        "tensorflow",
        _DL,
        0.15,
        0.1929,
        526,
        8,
        0.38,
        ((1, 2000), (1, 4000)),
        ((2, 8000), (4, 16000), (8, 40000)),
        (6.0, 2.5),
        (7.0, 2.5),
    ),
    App("caffe", _DL, 0.006, 0.0050, 48, 2, 0.0, ((1, 1000), (1, 2000)), (), (2.0, 2.0), (2.0, 2.0)),
    App(
        "gromacs",
        "molecular dynamics",
        0.10,
        0.0900,
        200,
        10,
        0.20,
        ((1, 1000), (1, 4000)),
        ((2, 8000),),
        (5.0, 2.0),
        (1.0, 5.0),
    ),
    App(
        "jupyter",
        "notebooks",
        0.08,
        0.0365,
        24,
        1,
        0.0,
        ((1, 250), (1, 500), (1, 1000)),
        (),
        (0.5, 5.0),
        (1.0, 4.0),
    ),
    App(None, None, 0.064, 0.0400, 100, 5, 0.0, ((1, 1000), (1, 2000)), (), (1.0, 1.5), (1.0, 1.5)),
)


def epoch_s(year: int, month: int, day: int) -> int:
    return round(datetime(year, month, day, tzinfo=ZoneInfo(TIMEZONE)).timestamp())


def as_day(day: tuple[int, int, int]) -> date:
    return date(*day)


@dataclass(frozen=True)
class Node:
    name: str
    server_type: str | None
    zone: str | None
    gpus: int
    cpus: int = _CPUS_OF_NODE
    mib: int = _MIB_OF_NODE


@dataclass
class Accounting:
    """Accounting with the columns of table `run` in `runs`: numbers as arrays (NaN: null), texts as lists."""

    since_s: int
    until_s: int
    runs: dict[str, Any]
    nodes: list[Node]
    team_of: dict[str, str]
    nodes_of: list[tuple[str, ...]]
    """The names of each run's nodes."""

    def __len__(self) -> int:
        return len(self.nodes_of)


@dataclass
class _Floor:
    """Nodes that are added when needed; each track gets its own GPUs."""

    nodes: list[Node] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def track(self, server_type: str, n_nodes: int, gpus: int) -> tuple[str, ...]:
        fit = [
            i for i, node in enumerate(self.nodes) if node.server_type == server_type and self.left[i] >= gpus
        ][:n_nodes]
        while len(fit) < n_nodes:
            number = len(self.nodes) + 1
            zone = f"zone{1 + (number - 1) // _NODES_OF_ZONE % 3}"
            self.nodes.append(Node(f"gpu{number:04d}", server_type, zone, _GPUS_OF_NODE[server_type]))
            self.left.append(_GPUS_OF_NODE[server_type])
            fit.append(number - 1)
        for i in fit:
            self.left[i] -= gpus
        return tuple(self.nodes[i].name for i in fit)


def generate(n_jobs: int = N_JOBS, seed: int = 20230101) -> Accounting:
    """Return the accounting of `n_jobs` jobs with GPUs and, for every 50, one job of each other kind."""
    random = np.random.default_rng(seed)
    since_s, until_s = epoch_s(*SINCE), epoch_s(*UNTIL)
    app, n_nodes, mgpu, run_s, wait_s = _jobs(random, n_jobs)
    floor = _Floor()
    start_s, nodes_of = _schedule(random, floor, n_nodes, mgpu, run_s, since_s, until_s)
    user = _users(random, n_jobs)
    core, memory, coverage, idle = _measurements(random, app, mgpu, run_s)
    order = np.argsort(start_s, kind="stable")
    many = len(APPS)
    names = [one.name for one in APPS] + [None]
    fields = [one.field for one in APPS] + [None]
    n_other = n_jobs // 50
    other = _others(random, n_other, since_s, until_s)
    app_all = np.concatenate([app[order], np.full(2 * n_other, many)])
    user_all = np.concatenate([user[order], _users(random, 2 * n_other)])
    start_all = np.concatenate([start_s[order].astype(float), other["start_s"]])
    run_all = np.concatenate([run_s[order].astype(float), other["run_s"]])
    wait_all = np.concatenate([wait_s[order].astype(float), other["wait_s"]])
    mgpu_all = np.concatenate([mgpu[order], np.zeros(2 * n_other, int)])
    n_nodes_all = np.concatenate([n_nodes[order], other["n_nodes"]])
    tracks = [nodes_of[i] for i in order.tolist()] + other["nodes"]
    nothing = np.full(2 * n_other, np.nan)
    total = len(app_all)
    eligible = np.where(np.isnan(start_all), other_submit(other, n_jobs, total), start_all - wait_all)
    end = np.where(np.isnan(start_all), eligible + 600, start_all + run_all)
    job_id = np.arange(1, total + 1)
    requested = np.where(np.arange(total) >= n_jobs + n_other, 1000, mgpu_all)
    cpus = np.where(mgpu_all > 0, np.maximum(mgpu_all // 1000, 1) * 4, 8)
    runs = {
        "cluster": ["neuron"] * total,
        "job_id": job_id,
        "submit_s": eligible,
        "first_submit_s": eligible,
        "eligible_s": eligible,
        "start_s": start_all,
        "end_s": end,
        "elapsed_s": np.where(np.isnan(start_all), 0, run_all),
        "name": [f"job{i % 97}" for i in range(total)],
        "user": [f"user{i:03d}" for i in user_all.tolist()],
        "account": [f"acct{i % N_ACCOUNTS:02d}" for i in user_all.tolist()],
        "qos": ["normal"] * total,
        "partition": ["cpu" if not m else "gpu" for m in mgpu_all.tolist()],
        "state": ["CANCELLED" if s != s else "COMPLETED" for s in start_all.tolist()],
        "n_nodes": np.where(np.isnan(start_all), 0, n_nodes_all),
        "nodes": [",".join(some) for some in tracks],
        "tres_requested": _tres(requested, cpus),
        "tres_allocated": _tres(mgpu_all, cpus),
        "requested_mgpu": np.where(requested % 1000, np.nan, requested).astype(float),
        "allocated_mgpu": np.where(mgpu_all % 1000, np.nan, mgpu_all).astype(float),
        "granted_mgpu": mgpu_all.astype(float),
        "ugpucore": np.concatenate([core[order], nothing]),
        "ugpumem": np.concatenate([memory[order], nothing]),
        "coverage": np.concatenate([coverage[order], nothing]),
        "no_process_mgpu_s": np.concatenate([idle[order], nothing]),
        "energy_j": np.concatenate([(250.0 * mgpu * run_s / 1000)[order], nothing]),
        "app": [names[i] for i in app_all.tolist()],
        "app_field": [fields[i] for i in app_all.tolist()],
    }
    nodes = [*floor.nodes, *(Node(name, None, None, 0) for name in sorted(set(sum(other["nodes"], ()))))]
    team_of = {f"acct{i:02d}": f"team{i % N_TEAMS:02d}" for i in range(N_ACCOUNTS)}
    return Accounting(since_s, until_s, runs, nodes, team_of, tracks)


def other_submit(other: dict[str, Any], n_jobs: int, total: int) -> np.ndarray:
    """Return submission times of jobs that never began; the entries of others are empty."""
    return np.concatenate([np.zeros(n_jobs), other["submit_s"]])[:total]


def _jobs(random: np.random.Generator, n_jobs: int) -> tuple[np.ndarray, ...]:
    """Return (app, nodes, GPU/1000, run s, wait s) of each job, with exactly the shares of APPS."""
    counts = [round(one.of_jobs * n_jobs) for one in APPS]
    counts[0] += n_jobs - sum(counts)
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    for index, (one, count) in enumerate(zip(APPS, counts, strict=True)):
        n_several = round(one.multi_node * count)
        shapes = np.array(
            [one.several[i % len(one.several)] for i in range(n_several)]
            + [one.one[i % len(one.one)] for i in range(count - n_several)]
        )
        mean_h = 8 * one.of_run_time / one.of_jobs  # of one.max_run_h × u^k the mean is max / (k + 1)
        run_h = one.max_run_h * random.random(count) ** (one.max_run_h / mean_h - 1)
        wait_h = np.where(random.random(count) < 0.8, 0, one.max_wait_h * random.random(count) ** 4)
        for column, values in zip(
            columns,
            (np.full(count, index), shapes[:, 0], shapes[:, 1], run_h * 3600, wait_h * 3600),
            strict=True,
        ):
            column.append(values)
    app, n_nodes, mgpu, run_s, wait_s = (np.concatenate(column) for column in columns)
    totals = np.bincount(app, run_s)
    shares = np.array([one.of_run_time for one in APPS])
    scale = shares * (totals / shares).min() / totals  # at most 1, so that no run is longer than it may be
    return app, n_nodes, mgpu, np.maximum(run_s * scale[app], 1).round().astype(int), wait_s.astype(int)


def _schedule(
    random: np.random.Generator,
    floor: _Floor,
    n_nodes: np.ndarray,
    mgpu: np.ndarray,
    run_s: np.ndarray,
    since_s: int,
    until_s: int,
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Return the start of each job, and its nodes."""
    length = until_s - since_s
    start_s = np.zeros(len(run_s), int)
    nodes_of: list[tuple[str, ...]] = [()] * len(run_s)
    for shape in sorted(set(zip(n_nodes.tolist(), mgpu.tolist(), strict=True))):
        jobs = np.flatnonzero((n_nodes == shape[0]) & (mgpu == shape[1]))
        n_lanes = int(np.ceil(run_s[jobs].sum() / (_BUSY * length)))
        gpus = -(-shape[1] // (1000 * shape[0]))
        server_type = "a100" if gpus > 4 or shape[0] > 2 else "v100" if shape[0] > 1 or gpus > 2 else "p100"
        # The longest jobs are first and the order of tracks alternates, to make tracks about equally long.
        by_length = jobs[np.argsort(-run_s[jobs], kind="stable")]
        turn = np.arange(len(jobs)) % (2 * n_lanes)
        lane_of = np.where(turn < n_lanes, turn, 2 * n_lanes - 1 - turn)
        for track in range(n_lanes):
            there = floor.track(server_type, shape[0], gpus)
            mine = random.permutation(by_length[lane_of == track])
            spare = length - int(run_s[mine].sum()) - len(mine)
            assert spare > 0
            gaps = np.diff(np.sort(random.integers(0, spare, len(mine))), prepend=0)
            start_s[mine] = since_s + np.cumsum(gaps) + np.cumsum(run_s[mine]) - run_s[mine]
            for job in mine.tolist():
                nodes_of[job] = there
    return start_s, nodes_of


def _users(random: np.random.Generator, n: int) -> np.ndarray:
    """Return the users of `n` jobs; a few users have most jobs, and every user has one."""
    weights = 1 / np.arange(1, N_USERS + 1)
    drawn = random.choice(N_USERS, n, p=weights / weights.sum())
    drawn[: min(n, N_USERS)] = np.arange(min(n, N_USERS))
    return drawn


def _measurements(
    random: np.random.Generator, app: np.ndarray, mgpu: np.ndarray, run_s: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(uGPUcore, uGPUmem, coverage, GPU/1000 × seconds without a process); some were not measured."""
    core, memory = np.zeros(len(app)), np.zeros(len(app))
    for index, one in enumerate(APPS):
        mine = app == index
        core[mine] = 100 * random.beta(*one.core, mine.sum())
        memory[mine] = 100 * random.beta(*one.memory, mine.sum())
    luck = random.random(len(app))
    coverage = np.where(luck < 0.02, np.nan, np.where(luck < 0.05, 0.5, 1.0))
    idle = np.where(random.random(len(app)) < 0.15, random.random(len(app)), 0) * mgpu * run_s
    unknown = np.isnan(coverage)
    return (
        *(np.where(unknown, np.nan, values) for values in (core.round(3), memory.round(3))),
        coverage,
        np.where(unknown, np.nan, idle.round()),
    )


def _others(random: np.random.Generator, n: int, since_s: int, until_s: int) -> dict[str, Any]:
    """Return `n` jobs without GPUs, and `n` jobs that were cancelled while they waited for a GPU."""
    run_s = random.integers(1, 20 * 3600, n)
    start_s = random.integers(since_s + 3600, until_s - 21 * 3600, n)
    never = np.full(n, np.nan)
    return {
        "start_s": np.concatenate([start_s, never]),
        "run_s": np.concatenate([run_s, never]),
        "wait_s": np.concatenate([random.integers(0, 3600, n), never]),
        "submit_s": np.concatenate([never, random.integers(since_s, until_s - 3600, n)]),
        "n_nodes": np.concatenate([np.ones(n), np.zeros(n)]).astype(int),
        "nodes": [(f"cpu{i % 4 + 1}",) for i in range(n)] + [()] * n,
    }


def _tres(mgpu: np.ndarray, cpus: np.ndarray) -> list[str]:
    known: dict[tuple[int, int], str] = {}
    for m, c in set(zip(mgpu.tolist(), cpus.tolist(), strict=True)):
        gpus = f',"gres/shard":{m // 250}' if m % 1000 else f',"gres/gpu":{m // 1000}' if m else ""
        known[m, c] = f'{{"cpu":{c},"mem":{c * 8000}{gpus}}}'
    return [known[pair] for pair in zip(mgpu.tolist(), cpus.tolist(), strict=True)]
