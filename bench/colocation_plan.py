"""Measure the cost of planning co-runners in slurm-gpuctld: time and memory by planner.

    .venv/bin/python bench/colocation_plan.py [--gpus 64] [--waiting 200] [--keys 20] [--polls 40]
                                              [--planners annealing,greedy,…] [--model FILE] [--json]

Slurm does not run: the queue of `--waiting` jobs of `--keys` kinds and the nodes of eight GPUs are simulated
inputs of slurm-gpuctld. The planner is called at each poll. Started jobs run at the next poll; some running
jobs end, and new jobs replace the started jobs. The speeds of half of all pairs are known. Each planner runs
in its own process, which loads slurm-gpuctld first; memory is the increase after this import. Time is
processor time. `fit` is the training of the speed predictor with its maximum number of jobs and speeds, at
most once a minute between polls.

With --json the last line is {"gpus": …, "waiting": …, "planners": {NAME: {"ms_p50": …, "ms_p99": …,
"ms_max": …, "starts": …, "mib": …}}, "fit": {"ms": …, "mib": …}}.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from bench.arguments import number

GPUS_OF_A_NODE = 8
SHARDS = 8
ENDS = 4
"""The number of jobs that end between two polls."""
DEFAULT = "annealing,greedy,sjf"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=number(GPUS_OF_A_NODE), default=64)
    parser.add_argument("--waiting", type=number(1), default=200)
    parser.add_argument("--keys", type=number(2), default=20)
    parser.add_argument("--polls", type=number(2), default=40)
    parser.add_argument("--planners", default=DEFAULT)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(_fit() if options.one == "fit" else _planned(options)))
        return
    found: dict[str, dict[str, float]] = {}
    print(
        f"{options.gpus} GPUs, {options.waiting} waiting jobs of {options.keys} kinds, {options.polls} polls"
    )
    print(f"{'planner':<14}{'p50':>9}{'p99':>9}{'max':>9}{'starts':>9}{'memory':>10}")
    for name in options.planners.split(","):
        one = found[name] = _in_separate_process(name)
        print(
            f"{name:<14}{one['ms_p50']:>6.1f} ms{one['ms_p99']:>6.1f} ms{one['ms_max']:>6.1f} ms"
            f"{one['starts']:>9.1f}{one['mib']:>6.1f} MiB"
        )
    fit = _in_separate_process("fit")
    print(f"{'fit':<14}{fit['ms']:>6.0f} ms{fit['mib']:>33.1f} MiB")
    if options.json:
        results = {"gpus": options.gpus, "waiting": options.waiting, "planners": found, "fit": fit}
        print(json.dumps(results))


def _in_separate_process(name: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--one", name], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"{name}: exit {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


def _store(n_keys: int, rng: random.Random) -> Any:
    from slurm_gpu.controller.colocation.store import ColocationStore

    store = ColocationStore()
    keys = [f"app{number}" for number in range(n_keys)]
    for key in keys:
        store.ran_alone(key, rng.uniform(300, 7200), rng.uniform(0.05, 0.6), rng.uniform(0.2, 0.9))
    for key in keys:
        for other in keys:
            if rng.random() < 0.5:
                store.ran_with(key, other, rng.uniform(0.4, 1.0))
    return store


def _fit() -> dict[str, float]:
    import slurm_gpu.controller.main  # noqa: F401
    from slurm_gpu.controller.colocation.pair_fit import MOST_KEYS, _chosen, predicted

    store = _store(MOST_KEYS, random.Random(1))
    profiles, speeds = _chosen(store, dict.fromkeys(store.profiles, 1))
    before = _mib()
    predicted(profiles, speeds)  # loads numpy
    began_s = time.process_time()
    predicted(profiles, speeds)
    return {"ms": 1e3 * (time.process_time() - began_s), "mib": _mib() - before}


def _planned(options: argparse.Namespace) -> dict[str, float]:
    import slurm_gpu.controller.main  # noqa: F401
    from slurm_gpu.controller.colocation.plan import choose
    from slurm_gpu.controller.colocation.serving import Planners
    from slurm_gpu.policy.lua.installed import ColocationInForce

    site = _Site(options)
    policy = ColocationInForce(
        "enforce", "throughput", None, 2, 0.75, 300, planner=options.one, model=options.model
    )
    planners = Planners()
    before = _mib()
    took_ms, starts = [], 0
    for poll in range(options.polls):
        began_s = time.process_time()
        server = planners.server("gpu", policy, site.store, site.keys)
        acts = choose(site.now_s, site.rooms, site.waiting, site.running, site.store, server, frozenset())
        if poll:  # the first call loads modules
            took_ms.append(1e3 * (time.process_time() - began_s))
            starts += len(acts)
        site.advance(acts)
    serving = planners.serving
    if serving is None or serving.serves != options.one:
        sys.exit(f"{options.one}: {serving}")
    took_ms.sort()
    return {
        "ms_p50": took_ms[len(took_ms) // 2],
        "ms_p99": took_ms[min(len(took_ms) - 1, int(0.99 * len(took_ms)))],
        "ms_max": took_ms[-1],
        "starts": starts / len(took_ms),
        "mib": _mib() - before,
    }


class _Site:
    """A simulated queue and simulated nodes, in the form in which slurm-gpuctld receives them."""

    def __init__(self, options: argparse.Namespace) -> None:
        from slurm_gpu.controller.colocation.free_shards import CorunGpu, GpuPlace, SharedNode

        self._rng = random.Random(1)
        self.store = _store(options.keys, self._rng)
        self.keys = sorted(self.store.profiles)
        self.now_s, self._last, self._n_waiting = 1_800_000_000.0, 0, options.waiting
        self.running: dict[int, Any] = {}
        self.waiting: list[Any] = []
        self.rooms: dict[str, Any] = {}
        for first in range(0, options.gpus, GPUS_OF_A_NODE):
            name = f"n{first // GPUS_OF_A_NODE:03}"
            gpus = [
                CorunGpu(GpuPlace(name, at), SHARDS)
                for at in range(min(GPUS_OF_A_NODE, options.gpus - first))
            ]
            self.rooms[name] = SharedNode(_node(name, len(gpus)), gpus, 10**6, 10**9)
        self._shards: dict[int, int] = {}
        for room in self.rooms.values():
            for gpu in room.gpus:
                self._run(self._job(), room, gpu.place.position, part=self._rng.random())
        self._fill()

    def advance(self, acts: list[Any]) -> None:
        """Let the started jobs run, and replace some jobs with new ones."""
        waiting = {one.agreed.job.job_id: one for one in self.waiting}
        for act in acts:
            room = self.rooms[act.place.node]
            self._run(waiting.pop(act.job_id), room, act.place.position, shards=act.shards)
        self.waiting = list(waiting.values())
        self.now_s += 1
        for job in self._rng.sample(sorted(self.running), min(ENDS, len(self.running))):
            del self.running[job]
            for room in self.rooms.values():
                for gpu in room.gpus:
                    if job in gpu.sharers:
                        gpu.sharers.remove(job)
                        gpu.free += self._shards.pop(job)
        self._fill()

    def _fill(self) -> None:
        self.waiting += [self._job() for _ in range(self._n_waiting - len(self.waiting))]

    def _job(self) -> Any:
        from slurm_gpu.controller.colocation.agreed import Agreed
        from slurm_gpu.controller.colocation.plan import WaitingSharer

        self._last += 1
        key = self._rng.choice(self.keys)
        least = self.store.shards(key, SHARDS)
        return WaitingSharer(Agreed(_counted(self._last), key, least, SHARDS), least, 1, 1)

    def _run(self, job: Any, room: Any, position: int, part: float = 0.0, shards: int | None = None) -> None:
        from slurm_gpu.controller.colocation.job_history import CorunProgress

        key, number = job.agreed.key, job.agreed.job.job_id
        alone_s = self.store.profiles[key].alone_s
        self.running[number] = CorunProgress(key, part * alone_s, (1 - part) * alone_s)
        self._shards[number] = job.least if shards is None else shards
        room.take(position, number, self._shards[number], 1, 1)


def _node(name: str, n_gpus: int) -> Any:
    from slurm_gpu.slurm.client import SlurmNode

    return SlurmNode(
        name=name,
        address=name,
        state="mixed",
        reason=None,
        cpus=10**6,
        cpus_allocated=0,
        memory_mib=10**9,
        memory_allocated_mib=0,
        gpus={"any": n_gpus},
        gpus_allocated={},
        shards=SHARDS * n_gpus,
        shards_allocated=0,
        features=(),
        partitions=("gpu",),
    )


def _counted(number: int) -> Any:
    from slurm_gpu.slurm.queue import CountedJob, JobPhase

    return CountedJob(
        job_id=number,
        user="any",
        uid=1,
        account="any",
        qos="normal",
        partition="gpu",
        phase=JobPhase.PENDING,
        n_tasks=1,
        n_nodes=1,
        n_cpus=1,
        per_job="",
        per_node="gres:shard:1",
        per_socket="",
        tres="",
        exclusive=False,
        submit_s=number,
        start_s=None,
        end_s=None,
        nodes="",
        admin_comment="",
    )


if __name__ == "__main__":
    main()
