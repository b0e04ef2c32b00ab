"""Measure response times of slurm-gpudbd while one user sends requests from 40 threads.

The benchmark starts its own lab (Slurm, MariaDB, slurm-gpudbd) with generated accounting. Each of
alice's threads sends its next request when the previous one is answered. Meanwhile bob requests
`/v1/health` and a page of runs, and root posts as a node over TCP, each over a new connection. The first
measurement is without alice, for comparison. alice's node posts use TCP with MUNGE, and are rejected.

    .venv/bin/python bench/readers.py [--runs 40000] [--threads 40] [--seconds 15] [--json]

Run as root, with no lab up. With --json the last line is
{FLOOD: {"health_p95_s", "runs_p95_s", "node_p95_s", "node_failed", "answers"}}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml

from bench import arguments
from lab.cluster import Lab
from lab.slurm_config import CLUSTER
from slurm_gpu.database.storage.engine import Database
from tests.lab import readers
from tests.reports.filling import fill
from tests.reports.generated import generate

SORTED = [f"/v1/runs?limit=1000&sort={column}" for column in ("uGPUcore", "RUN_h", "energy_j", "nGPU")]
REQUEST = (
    '{"account": "nobodys", "partition": "gpu", "gpus": 1, "n_nodes": 1, "duration_s": 3600, "why": "x"}'
)
NODE = "/v1/node"
SHIPMENT = json.dumps({"wire": 1, "node": "probe", "boot_id": "b", "records": []})
RECORDS = json.dumps({"wire": 1, "node": "n1", "boot_id": "b", "records": ["x" * 50_000]})
FLOODS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "none": ("", "", ()),
    "sorted pages": ("GET", "", SORTED),
    "cluster": ("GET", "", ("/v1/cluster",)),
    "reservations": ("POST", REQUEST, ("/v1/reservations",)),
    "node posts": ("POST", SHIPMENT, (NODE,)),
    "node posts with records": ("POST", RECORDS, (NODE,)),
}


def main() -> None:
    options = _options()
    lab = Lab()
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    report: dict[str, Any] = {}
    try:
        lab.up()
        url = yaml.safe_load(lab.layout.database_file.read_text())["url"]
        database, accounting = Database(url), generate(options.runs)
        accounting.runs["cluster"] = [CLUSTER] * len(accounting)
        accounting.runs["job_id"] = accounting.runs["job_id"] + 1_000_000
        fill(database, accounting)
        _with_reservations(lab)
        for name, flood in FLOODS.items():
            report[name] = measured(lab, flood, options.threads, options.seconds)
            print(name, report[name], flush=True)
    finally:
        lab.down()
    if options.json:
        print(json.dumps(report))


def _with_reservations(lab: Lab) -> None:
    """Allow users to request reservations, so that slurm-gpudbd queries sacctmgr for their accounts."""
    site = yaml.safe_load(lab.layout.site_file.read_text())
    site["placement"] = {"reservations": {}}
    lab.layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))
    lab.daemons["slurm-gpudbd"].restart()


def measured(
    lab: Lab, flood: tuple[str, str, Sequence[str]], n_threads: int, seconds: float
) -> dict[str, Any]:
    """Return the 95th percentiles of bob's response times, and the answers to alice."""
    method, body, targets = flood
    program = ["python3", "-c", Path(readers.__file__).read_text(encoding="utf-8")]
    munge = {"MUNGE_SOCKET": str(lab.layout.munge_socket)}

    def run(user: str, what: str, lasts_s: float, *more: str) -> Any:
        over_tcp = NODE in more
        place = f"127.0.0.1:{lab.layout.database_port}" if over_tcp else str(lab.layout.database_socket)
        argv = [*program, what, place, str(lasts_s), *more]
        return json.loads(lab.run_as(user, argv, timeout_s=lasts_s + 120, extra=munge).stdout)

    with ThreadPoolExecutor() as pool:
        answers = (
            pool.submit(run, "alice", "flood", seconds + 2, str(n_threads), method, body, *targets)
            if targets
            else None
        )
        probes = {
            "health": pool.submit(run, "bob", "probe", seconds, "/v1/health"),
            "runs": pool.submit(run, "bob", "probe", seconds, "/v1/runs?limit=20"),
            "node": pool.submit(run, "root", "probe", seconds, NODE, "POST", SHIPMENT),
        }
        found: dict[str, Any] = {}
        for name, probe in probes.items():
            took = probe.result()["took"]
            found[f"{name}_p95_s"] = round(statistics.quantiles(took, n=20)[-1], 3)
            found[f"{name}_p50_s"] = round(statistics.median(took), 3)
            found[f"{name}_n"], found[f"{name}_failed"] = len(took), probe.result()["failed"]
        found["answers"] = None if answers is None else answers.result()
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=arguments.number(1000), default=40_000)
    parser.add_argument("--threads", type=arguments.number(1), default=40)
    parser.add_argument("--seconds", type=arguments.seconds(5), default=15.0)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
