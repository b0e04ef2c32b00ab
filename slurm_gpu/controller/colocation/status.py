"""Write and read colocation.json in the run directory, which describes how jobs share GPUs.

See docs/contracts.md for the format. The file identifies jobs only by ID, because all users may read the
file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.free_shards import CorunGpu, SharedNode
from slurm_gpu.controller.colocation.job_history import RunKey
from slurm_gpu.controller.colocation.serving import Serving
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.run_file import write_run_file

FILE_NAME = "colocation.json"
_VERSION = 1
# Maximum age of a current file.
FRESH_S = 60


@dataclass(frozen=True, slots=True)
class Started:
    """A job that was assigned a place on a GPU."""

    at_s: int
    job_id: int
    node: str
    index: int
    co_runners: list[int]
    speed: float
    """The predicted speed, relative to running alone."""
    is_trial: bool = False
    """Whether the job shares the GPU for a trial."""


class Sharing(NamedTuple):
    """The GPU, co-runners and speed of one running job with shards."""

    node: str
    position: int
    shards: int
    of: int
    co_runners: tuple[int, ...]
    speed: float
    is_trial: bool = False
    """Whether the speed is being measured in a trial."""


def write(
    path: Path,
    now_s: float,
    mode: str,
    shards_per_gpu: int | None,
    shared_nodes: Mapping[str, SharedNode],
    agreed: Mapping[int, Agreed],
    store: ColocationStore,
    last: Sequence[Started],
    serving: Serving | None,
    trials: Collection[tuple[RunKey, ...]] = (),
) -> None:
    """Write the file atomically; `trials` contains the jobs in trials. Raise OutsideError on failure."""
    on_trial = {run.job_id for runs in trials for run in runs}
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
            {"node": gpu.place.node, "index": gpu.place.position, "jobs": _jobs(gpu, agreed, store, on_trial)}
            for room in shared_nodes.values()
            for gpu in room.gpus
            if gpu.sharers
        ],
        "last": [asdict(one) for one in last],
    }
    write_run_file(path, json.dumps(plain) + "\n")


def _jobs(
    gpu: CorunGpu, agreed: Mapping[int, Agreed], store: ColocationStore, on_trial: Collection[int]
) -> list[dict[str, object]]:
    here = [agreed[job] for job in gpu.sharers if job in agreed]
    return [
        {
            "job_id": one.job.job_id,
            "shards": one.shards,
            "speed": round(store.speed(one.key, [other.key for other in here if other is not one]), 3),
            "trial": one.job.job_id in on_trial,
        }
        for one in here
    ]


def sharing_of(path: Path, job_id: int, now_s: float) -> Sharing | None:
    """Return how a job shares its GPU; None if the file is missing, too old, or does not contain the job."""
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
                    bool(mine.get("trial", False)),
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def last_seen(path: Path) -> float | None:
    """Return the time at which the file was written; None if the file is missing or damaged."""
    try:
        return float(json.loads(path.read_text())["as_of_s"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def serving_of(path: Path) -> Serving | None:
    """Return the planner in use; None if the file does not name a planner."""
    try:
        planner = json.loads(path.read_text())["planner"]
        return Serving(str(planner["asked"]), str(planner["serves"]), planner["why"] and str(planner["why"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
