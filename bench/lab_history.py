"""Store generated accounting of the days before a lab was started, so that pages and reports show a past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lab.cluster import Lab
from lab.slurm_config import CLUSTER
from lab.synthetic_usage import usage_of
from slurm_gpu.database.settings import load_settings
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.wire.answers.usage import BINS_S, ClusterUsage
from tests.reports.filling import insert, insert_nodes, insert_runs
from tests.reports.generated import Node
from tests.reports.world import run_row

_DAY_S = 86400
# Applications: name, field, mean utilisation, mean hours, sizes of jobs in GPUs, and share of the jobs.
_APPS = (
    ("pytorch", "deep learning", 82, 9.0, (1, 2, 4, 8), 0.5),
    ("vllm", "deep learning", 64, 5.0, (1, 2), 0.15),
    ("gromacs", "molecular dynamics", 74, 6.0, (1, 4), 0.2),
    ("jupyter", "notebooks", 11, 3.0, (1,), 0.15),
)
# Users, their accounts, and their shares of the jobs.
_USERS: Sequence[tuple[str, str, float]] = (
    ("alice", "vision", 0.3),
    ("carol", "vision", 0.1),
    ("bob", "nlp", 0.2),
    ("dina", "nlp", 0.1),
    ("emil", "physics", 0.1),
    ("farah", "physics", 0.08),
    ("goran", "biology", 0.07),
    ("hana", "biology", 0.05),
)


def store_history(lab: Lab, days: int, now_s: float, first_job_id: int) -> None:
    """Store the runs, nodes and usage of the last `days`; the last run has the job ID `first_job_id` - 1."""
    nodes = [Node(node.name, node.model.value, node.zone, len(node.gpus)) for node in lab.nodes.values()]
    database = Database(load_settings(lab.layout.database_file).url)
    since_s = int(now_s) - days * _DAY_S
    insert_nodes(database, nodes, since_s - _DAY_S)
    runs = sorted(_runs(nodes, since_s, int(now_s) - 600), key=lambda run: run["start_s"])
    first_id = first_job_id - len(runs)
    insert_runs(
        database,
        [run_row(1_000_000 + place, {**run, "job_id": first_id + place}) for place, run in enumerate(runs)],
    )
    _store_usage(database, sum(node.gpus for node in nodes), now_s)
    database.engine.dispose()


def _runs(nodes: Sequence[Node], since_s: int, until_s: int) -> Iterator[dict[str, Any]]:
    """Yield runs that never use more GPUs of a node than it has: each run has its own GPUs for its time."""
    random = np.random.default_rng(20260101)
    for node in nodes:
        free_at_s = [since_s + int(random.integers(0, _DAY_S))] * node.gpus
        while min(free_at_s) < until_s:
            free_at_s.sort()
            kind = int(random.choice(len(_APPS), p=[share for *_, share in _APPS]))
            app, field, core, mean_h, sizes, _ = _APPS[kind]
            gpus = int(min(random.choice(sizes), node.gpus))
            user, account, _ = _USERS[int(random.choice(len(_USERS), p=[share for *_, share in _USERS]))]
            wait_s = 0 if random.random() < 0.6 else int(random.exponential(2400))
            start_s = free_at_s[gpus - 1] + int(random.exponential(2700))
            run_s = int(random.gamma(1.2, mean_h * 3000)) + 30
            free_at_s[:gpus] = [start_s + run_s] * gpus
            if start_s + run_s >= until_s:
                continue
            is_idle = random.random() < 0.06
            yield {
                "cluster": CLUSTER,
                "name": f"{app}-{user[:2]}{int(random.integers(10, 99))}",
                "user": user,
                "account": account,
                "partition": "gpu",
                "submit_s": start_s - wait_s,
                "first_submit_s": start_s - wait_s,
                "start_s": start_s,
                "end_s": start_s + run_s,
                "mgpu": 1000 * gpus,
                "requested_mgpu": 1000 * gpus,
                "nodes": [node.name],
                "gpu_type": node.server_type,
                "ugpucore": 0.0 if is_idle else float(np.clip(random.normal(core, 12), 1, 99).round(1)),
                "ugpumem": float(np.clip(random.normal(55, 20), 2, 97).round(1)),
                "coverage": 1.0,
                "no_process_mgpu_s": 1000 * gpus * run_s if is_idle else 0,
                "energy_j": 260.0 * gpus * run_s,
                "app": app,
                "app_field": field,
            }


def _store_usage(database: Database, n_gpus: int, now_s: float) -> None:
    """Store the usage of the last 30 days in the bins of the database."""
    width_s = BINS_S[1]
    names = [
        *("cluster", "from_s", "n_samples", "gpus", "allocated", "busy", "waiting_jobs", "waiting_gpus"),
    ]
    usage: ClusterUsage = usage_of(n_gpus, 1, now_s - width_s)
    rows = [
        (CLUSTER, usage.from_s + place * width_s, width_s // 60, *values)
        for place, values in enumerate(
            zip(usage.gpus, usage.allocated, usage.busy, usage.waiting_jobs, usage.waiting_gpus, strict=True)
        )
        if values[0] is not None
    ]
    insert(database, "cluster_usage", names, rows)
