"""Read snapshots of a queue in the format of mila-iqia/slurm-queue-time-pred.

A file has the jobs that were submitted on a day and were pending when the queue was polled (`poll_time`, at
noon): their values at that time, and later values. A file in another format is rejected with the place,
the value and the expected format. Only these columns are read:

- the request of the job, and its submit time;
- the state of the queue at the poll: `*_above`, `partition_id_y` and `priority_y`, but no `*_run_hours`,
  which contain the future run time, and no hours of running jobs, whose meaning is not documented;
- `start_time`, which `QueueSamples.known_at` hides until that time.

`priority_x`, `partition_id_x`, `alloc_nodes` and `state` are final values of accounting and are never read.
An `eligible_time` after the poll counts as a gap.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.errors import InputError
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
COLUMNS = (*_TIMES, "req_tres", *_NUMBERS)
_POLL = len(_NUMBERS) + _TIMES.index("poll_time")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_MOST_NAMED = 4
_GPUS, _GPUS_OF_TYPE, _NODES = (
    re.compile(rf"(?:^|,){name}=(\d+)") for name in ("gres/gpu", "gres/gpu:[^=,]+", "node")
)
_NOT_FEATURES = {"r_jobs", "r_cores", "r_mem", "r_gpus"}
"""Columns with one value for all jobs of a snapshot, which would only identify the day."""

TABLE_ORDER = ("all", "kind", "partition", "size", "account and partition")


def read_folder(folder: Path) -> QueueSamples:
    """Read all files *.csv and *.csv.gz of `folder`; raise InputError if one has another format."""
    if not folder.is_dir():
        raise InputError(str(folder), 0, 0, "is not a folder")
    paths = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
    if not paths:
        raise InputError(str(folder), 0, 0, "contains no file *.csv or *.csv.gz")
    names = (*_NUMBERS, *_TIMES, "gpus", "nodes")
    value = dict(zip(names, np.concatenate([_read_file(path) for path in paths]).T, strict=True))
    if not len(value["poll_time"]):
        raise InputError(str(folder), 0, 0, "no file contains a job")
    return _samples(value)


def _read_file(path: Path) -> Floats:
    """Return (jobs, columns): _NUMBERS, _TIMES in epoch seconds, GPUs and nodes."""
    try:
        # Spreadsheets start a file with a byte order mark.
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        reader = csv.reader(io.StringIO(text.decode("utf-8-sig"), newline=""))
        head = next(reader, [])
        rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), 0, 0, f"cannot be read: {error}") from error
    if problem := _problem_of(head):
        raise InputError(str(path), 1, 1, problem)
    found: list[list[float]] = []
    for line, row in rows:
        if len(row) != len(head):
            problem = f"{len(row)} values for the {len(head)} columns of line 1"
            raise InputError(str(path), line, 1, problem)
        try:
            found.append(_read_row(dict(zip(head, row, strict=True))))
        except ValueError as error:
            raise InputError(str(path), line, 1, str(error)) from None
        if found[-1][_POLL] != found[0][_POLL]:
            raise InputError(
                str(path), line, 1, "poll_time differs from that of the first job: write one file per poll"
            )
    return np.array(found, dtype=float).reshape(len(rows), len(_NUMBERS) + len(_TIMES) + 2)


def _problem_of(head: list[str]) -> str | None:
    missing = [name for name in COLUMNS if name not in head]
    if not missing:
        return None
    if len(head) < 2:
        return f"{','.join(head)[:40]!r} is not a list of columns separated by commas; --help lists them"
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"missing columns: {', '.join(missing[:_MOST_NAMED])}{more}; --help lists all"


def _read_row(row: Mapping[str, str]) -> list[float]:
    values = [_number(name, row[name]) for name in _NUMBERS]
    times = [_epoch_s(name, row[name]) for name in _TIMES]
    submit_s, _, start_s, poll_s = times
    if math.isnan(poll_s) or math.isnan(submit_s):
        raise ValueError(f"{'poll_time' if math.isnan(poll_s) else 'submit_time'} is empty")
    if submit_s > poll_s or start_s <= poll_s:
        raise ValueError(
            f"the job was not pending at poll_time {row['poll_time']}: "
            f"submit_time {row['submit_time']}, start_time {row['start_time'] or 'empty'}"
        )
    # If Slurm accounts for types of GPUs, the number without a type is their total.
    gpus = _amount(_GPUS, row["req_tres"]) or _amount(_GPUS_OF_TYPE, row["req_tres"])
    return [*values, *times, gpus, _amount(_NODES, row["req_tres"])]


def _number(name: str, text: str) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise ValueError(f"{name} {text!r} is not a number (leave unknown ones empty)")
    return value


def _epoch_s(name: str, text: str) -> float:
    if not text:
        return math.nan
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    raise ValueError(f"{name} {text!r} is not a time such as 2021-05-01 12:00:00 (leave unknown ones empty)")


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
