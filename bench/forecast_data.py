"""Read snapshots of a queue in the format of mila-iqia/slurm-queue-time-pred.

A file has the jobs that were submitted on a day and were pending when the queue was polled (`poll_time`, at
noon): their values at that time, and columns from later. Only these are read:

- the request of the job, and its submit time;
- the state of the queue at the poll: `*_above`, `partition_id_y` and `priority_y`, but no `*_run_hours`,
  which contain the future run time, and no hours of running jobs, whose meaning is not documented;
- `start_time`, which `QueueSamples.known_at` hides until then.

`priority_x`, `partition_id_x`, `alloc_nodes` and `state` are final values of accounting and are never read.
An `eligible_time` after the poll counts as a gap.
"""

from __future__ import annotations

import csv
import gzip
import re
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import KINDS, Floats, QueueSamples, codes_of

_OF_JOB = ("req_cpus", "req_mem_total", "req_mem_per_cpu", "time_limit_sec", "account_id", "partition_id_y")
_AMOUNTS = ("jobs", "cores", "mem", "core_hours", "gpus", "gpu_hours")
_QUEUED = tuple(f"q_{part}{amount}" for part in ("", "p_", "a_", "p_a_") for amount in _AMOUNTS)
_RUNNING = tuple(
    f"r_{part}{amount}" for part in ("", "p_", "p_a_") for amount in ("jobs", "cores", "mem", "gpus")
)
_ABOVE = tuple(f"{name}_above" for name in (*_QUEUED, *_RUNNING))
_NUMBERS = (*_OF_JOB, "priority_y", *_ABOVE)
_TIMES = ("submit_time", "eligible_time", "start_time", "poll_time")
_GPUS, _NODES = (re.compile(rf"(?:^|,){name}(?::[^=,]+)?=(\d+)") for name in ("gres/gpu", "node"))
_NOT_FEATURES = {"r_jobs", "r_cores", "r_mem", "r_gpus"}
"""Columns with one value for all jobs of a snapshot, which would only identify the day."""

TABLE_ORDER = ("all", "kind", "partition", "size", "account and partition")


def read_folder(folder: Path) -> QueueSamples:
    """Read all files *.csv and *.csv.gz of `folder`."""
    paths = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
    numbers, times, gpus, nodes = [], [], [], []
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            reader = csv.reader(lines)
            head = next(reader)
            rows = list(reader)
        of_row = itemgetter(*(head.index(name) for name in _NUMBERS))
        numbers.append(np.array([[text or "nan" for text in of_row(row)] for row in rows], dtype=float))
        of_row = itemgetter(*(head.index(name) for name in _TIMES))
        stamps = np.array([[text or "NaT" for text in of_row(row)] for row in rows], dtype="datetime64[s]")
        times.append(np.where(np.isnat(stamps), np.nan, stamps.astype(float)))
        asked = [row[head.index("req_tres")] for row in rows]
        gpus += [_amount(_GPUS, text) for text in asked]
        nodes += [_amount(_NODES, text) for text in asked]
    value = dict(zip(_NUMBERS, np.concatenate(numbers).T, strict=True))
    value |= dict(zip(_TIMES, np.concatenate(times).T, strict=True))
    return _samples(value | {"gpus": np.array(gpus), "nodes": np.array(nodes)})


def _samples(value: dict[str, Floats]) -> QueueSamples:
    at_s, hours = value["poll_time"], value["time_limit_sec"] / 3600
    eligible_for_s = at_s - value["eligible_time"]
    feature = {
        "gpus": _log(value["gpus"]),
        "nodes": _log(value["nodes"]),
        "cores": _log(value["req_cpus"]),
        "mem": _log(value["req_mem_total"]),
        "mem_per_core": _log(value["req_mem_per_cpu"]),
        "limit": _log(value["time_limit_sec"]),
        "core_hours": _log(value["req_cpus"] * hours),
        "gpu_hours": _log(value["gpus"] * hours),
        "waited": _log(at_s - value["submit_time"]),
        "eligible": np.where(eligible_for_s >= 0, _log(eligible_for_s), np.nan),
        "priority": np.log2(np.maximum(value["priority_y"], 1e-12)),
    }
    feature |= {name: _log(value[f"{name}_above"]) for name in (*_QUEUED, *_RUNNING)}
    for part in ("", "p_"):
        for amount in ("cores", "gpus"):
            feature[f"q_{part}{amount}/r"] = feature[f"q_{part}{amount}"] - feature[f"r_{part}{amount}"]
    names = [name for name in feature if name not in _NOT_FEATURES]
    account, partition = value["account_id"], value["partition_id_y"]
    limit = np.round(feature["limit"])
    groups = {
        "all": np.zeros(len(at_s), dtype=np.int64),
        "kind": np.where(value["gpus"] > 0, KINDS["gpu"], KINDS["cpu"]),
        "partition": codes_of(partition),
        "size": codes_of(partition, np.round(feature["cores"]), value["gpus"], limit),
        "account and partition": codes_of(account, partition),
    }
    asked = (value["req_cpus"], value["req_mem_total"], value["gpus"], value["time_limit_sec"])
    return QueueSamples(
        at_s=at_s,
        start_s=value["start_time"],
        gone_s=np.full(len(at_s), np.nan),
        features=np.stack([feature[name] for name in names], axis=1).astype(np.float32),
        names=names,
        groups=groups,
        alike=codes_of(at_s, account, *asked),
    )


def waited_before_s(samples: QueueSamples) -> NDArray[np.float64]:
    """Return (n) how long each job had waited at the poll."""
    return np.asarray(2.0 ** samples.features[:, samples.names.index("waited")] - 1.0, dtype=float)


def _log(amount: Floats) -> Floats:
    return np.log2(np.maximum(amount, 0.0) + 1.0)


def _amount(pattern: re.Pattern[str], tres: str) -> float:
    return float(sum(int(number) for number in pattern.findall(tres)))
