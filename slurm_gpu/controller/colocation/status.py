"""Who shares a GPU with whom, for whoever asks: colocation.json in the run directory (docs/contracts.md).

It names jobs by their ids alone: everybody may read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.free_shards import CorunGpu, SharedNode
from slurm_gpu.controller.colocation.serving import Serving
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.run_file import write_run_file

FILE_NAME = "colocation.json"
_VERSION = 1
FRESH_S = 60
"""An older one says nothing any more."""


@dataclass(frozen=True, slots=True)
class Started:
    """A job that was given its place."""

    at_s: int
    job_id: int
    node: str
    index: int
    beside: list[int]
    speed: float
    """Predicted, of that alone."""


class Sharing(NamedTuple):
    """What the file says of one job that runs on a GPU with shards."""

    node: str
    position: int
    shards: int
    of: int
    beside: tuple[int, ...]
    speed: float


def write(
    path: Path,
    now_s: float,
    mode: str,
    shards_per_gpu: int | None,
    rooms: Mapping[str, SharedNode],
    agreed: Mapping[int, Agreed],
    store: ColocationStore,
    last: Sequence[Started],
    serving: Serving | None,
) -> None:
    """In one step; raises OutsideError."""
    plain = {
        "version": _VERSION,
        "as_of_s": int(now_s),
        "mode": mode,
        "shards_per_gpu": shards_per_gpu,
        "planner": None if serving is None else asdict(serving),
        "waiting": [
            {"job_id": one.job.job_id, "until_s": one.job.start_s}
            for one in agreed.values()
            if one.waits_for_its_place(now_s)
        ],
        "gpus": [
            {"node": gpu.place.node, "index": gpu.place.position, "jobs": _jobs(gpu, agreed, store)}
            for room in rooms.values()
            for gpu in room.gpus
            if gpu.sharers
        ],
        "last": [asdict(one) for one in last],
    }
    write_run_file(path, json.dumps(plain) + "\n")


def _jobs(gpu: CorunGpu, agreed: Mapping[int, Agreed], store: ColocationStore) -> list[dict[str, object]]:
    here = [agreed[job] for job in gpu.sharers if job in agreed]
    return [
        {
            "job_id": one.job.job_id,
            "shards": one.shards,
            "speed": round(store.speed(one.key, [other.key for other in here if other is not one]), 3),
        }
        for one in here
    ]


def sharing_of(path: Path, job_id: int, now_s: float) -> Sharing | None:
    """Of a job; None where the file is not there, too old, or says nothing of it."""
    try:
        plain = json.loads(path.read_text())
        if plain["version"] != _VERSION or now_s - plain["as_of_s"] > FRESH_S:
            return None
        for gpu in plain["gpus"]:
            jobs = {one["job_id"]: one for one in gpu["jobs"]}
            if job_id in jobs:
                mine = jobs.pop(job_id)
                return Sharing(
                    str(gpu["node"]),
                    int(gpu["index"]),
                    int(mine["shards"]),
                    int(plain["shards_per_gpu"]),
                    tuple(map(int, jobs)),
                    float(mine["speed"]),
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def last_seen(path: Path) -> float | None:
    """When it was written, by what it says; None where it is not there or damaged."""
    try:
        return float(json.loads(path.read_text())["as_of_s"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def serving_of(path: Path) -> Serving | None:
    """Which planner serves, by what it says; None where it says nothing of that."""
    try:
        said = json.loads(path.read_text())["planner"]
        return Serving(str(said["asked"]), str(said["serves"]), said["why"] and str(said["why"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
