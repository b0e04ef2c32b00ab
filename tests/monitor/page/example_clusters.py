"""Clusters in the answers of slurm-gpuweb (docs/contracts.md, section 8), for the page without a backend."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

NOW_S = 1_795_000_000
GAP = 255
FREE, ALLOCATED, SHARED, OUT, UNWATCHED = range(5)
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\"onmouseover='alert(3)'",
    "javascript:alert(4)",
    "\u202egnp.exe\u0000&amp;",
)
_CONCERNS = ("used_then_idle", "throttled", "xid", "partly_unused", "memory_idle")
_REASONS = ("Priority", "Priority", "Priority", "Resources", "QOSMaxGRESPerUser", "Dependency")
_MEANINGS = {
    "Priority": "others come first",
    "Resources": "there is no room yet",
    "QOSMaxGRESPerUser": "the user is at a limit",
    "Dependency": "it waits for another job",
}
METRICS = [
    {"name": "util", "title": "Utilisation", "unit": "%", "top": 100, "step": 1},
    {"name": "mem", "title": "Memory used", "unit": "%", "top": 100, "step": 1},
    {"name": "power", "title": "Power", "unit": "W", "top": 700, "step": 3},
    {"name": "temp", "title": "Temperature", "unit": "°C", "top": 100, "step": 1},
    {
        "name": "p25_util",
        "title": "Utilisation since the job began (p25)",
        "unit": "%",
        "top": 100,
        "step": 1,
    },
    {"name": "state", "title": "State", "unit": "", "top": 4, "step": 1},
]


@dataclass
class World:
    """The answers of slurm-gpuweb."""

    layout: dict[str, Any]
    frames: dict[str, bytearray]
    jobs: dict[int, dict[str, Any]]
    alerts: list[dict[str, Any]]
    reservations: list[dict[str, Any]]
    me: dict[str, Any]
    runs: dict[str, Any] = field(default_factory=dict)
    timelines: dict[str, Any] = field(default_factory=dict)
    diagnoses: dict[str, Any] = field(default_factory=dict)
    queued: dict[str, Any] = field(default_factory=dict)
    """The jobs in Slurm's queue, by ID."""
    ended: dict[str, Any] = field(default_factory=dict)
    """The pages of ended runs, by cursor; "" for the first."""
    as_of_s: float = NOW_S
    timezone: str = "UTC"
    complete_from_s: float = 0.0
    """The time from which the alerts include all idle jobs."""
    slurm_s: float | None = None
    """The time of slurmctld's last answer, or None if it equals `as_of_s`."""
    version: int = 1
    changed: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.frames["state"])

    def jobs_since(self, since: int | None) -> dict[str, Any]:
        """Return the answer of GET /api/v1/jobs?since=."""
        if since is None:
            changed_jobs = list(self.jobs.values())
        else:
            changed_jobs = [job for key, job in self.jobs.items() if self.changed.get(key, 0) > since]
        gone = [] if since is None else [key for key, at in self.gone.items() if at > since]
        return {"version": self.version, "all": since is None, "jobs": changed_jobs, "gone": gone}

    def free(self) -> dict[str, Any]:
        """Return the answer of GET /api/v1/free."""
        types: dict[str, dict[str, Any]] = {}
        for square, kind in enumerate(self._types()):
            of = types.setdefault(
                kind,
                {
                    "type": kind,
                    "total": 0,
                    "free": 0,
                    "allocated": 0,
                    "out_of_service": 0,
                    "next_free_s": None,
                },
            )
            state = self.frames["state"][square]
            of["total"] += 1
            of[{FREE: "free", UNWATCHED: "free", OUT: "out_of_service"}.get(state, "allocated")] += 1
        ends = [job["end_s"] for job in self.jobs.values() if job["state"] == "RUNNING" and job["end_s"]]
        for of in types.values():
            of["next_free_s"] = min(ends, default=None)
        return {"types": list(types.values()), "as_of_s": self.as_of_s}

    def usage(self, days: int) -> dict[str, Any]:
        """Return the answer of GET /api/v1/usage: bins of an hour, of which the first has no data."""
        bins = 24 * days
        return {
            "from_s": int(self.as_of_s) // 3600 * 3600 - (bins - 1) * 3600,
            "bin_s": 3600,
            "gpus": [None, *[self.n] * (bins - 1)],
            "allocated": [None, *[self.n - 2] * (bins - 1)],
            "busy": [None] * bins if not self.me["operator"] else [None, *[self.n / 2] * (bins - 1)],
            "waiting_jobs": [None, *[3] * (bins - 1)],
            "waiting_gpus": [None, *[6] * (bins - 1)],
        }

    def queue(self) -> dict[str, Any]:
        """Return the answer of GET /api/v1/queue."""
        waiting = [job for job in self.jobs.values() if job["state"] == "PENDING"]
        reasons: dict[str, dict[str, Any]] = {}
        for job in waiting:
            of = reasons.setdefault(
                job["reason"],
                {"reason": job["reason"], "meaning": _MEANINGS.get(job["reason"], job["reason"])}
                | {"n_jobs": 0, "n_gpus": 0, "next_start_s": None},
            )
            of["n_jobs"] += 1
            of["n_gpus"] += job["n_gpus"]
        first = sorted((job for job in waiting if job["start_s"]), key=lambda job: job["start_s"])
        jobs = [{"job_id": job["job_id"], "start_s": job["start_s"]} for job in first]
        return {"reasons": list(reasons.values()), "jobs": jobs, "as_of_s": self.as_of_s}

    def _types(self) -> list[str]:
        return [
            gpu["type"]
            for zone in self.layout["zones"]
            for rack in zone["racks"]
            for node in rack["nodes"]
            for gpu in node["gpus"]
        ]


def make_world(
    n_nodes: int = 1280, n_gpus: int = 8, n_zones: int = 4, n_racks: int = 8, seed: int = 7
) -> World:
    """Return a busy cluster with `n_racks` racks in each zone, or 0 if the site names no racks."""
    rng = random.Random(seed)
    names = [f"n{number:0{len(str(n_nodes))}}" for number in range(1, n_nodes + 1)]
    types = ["h100", "h100", "a100", "v100"]
    zones, at = [], 0
    for zone in range(n_zones):
        here = names[at : (zone + 1) * n_nodes // n_zones]
        at += len(here)
        kind = types[zone % len(types)]
        nodes = [_node(name, kind, n_gpus) for name in here]
        racks = max(1, n_racks)
        size = -(-len(nodes) // racks)
        zones.append(
            {
                "name": f"zone{zone + 1}" if n_zones > 1 else None,
                "racks": [
                    {"name": f"r{zone + 1}{rack + 1:02}" if n_racks else None, "nodes": part}
                    for rack in range(racks)
                    if (part := nodes[rack * size : (rack + 1) * size])
                ],
            }
        )
    n = n_nodes * n_gpus
    world = World(
        layout={
            "id": f"made-{n}-{seed}",
            "cluster": "neuron",
            "zones": zones,
            "metrics": copy.deepcopy(METRICS),
        },
        frames={name: bytearray([GAP]) * n for name in ("util", "mem", "power", "temp", "clock", "p25_util")},
        jobs={},
        alerts=[],
        reservations=_reservations(),
        me={
            "cluster": "neuron",
            "user": "alice",
            "operator": True,
            "limits": _limits(),
            "limits_as_of_s": NOW_S,
            "limits_why": None,
            "signed_in": "link",
            "waits": [],
        },
    )
    world.frames["state"] = bytearray(n)
    _fill(world, rng, n_nodes, n_gpus)
    return world


def _node(name: str, kind: str, n_gpus: int) -> dict[str, Any]:
    gpus = [{"index": i, "uuid": f"GPU-{name}-{i}", "type": kind} for i in range(n_gpus)]
    return {"name": name, "server_type": kind, "gpus": gpus}


def _fill(world: World, rng: random.Random, n_nodes: int, n_gpus: int) -> None:
    state = world.frames["state"]
    users = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy"]
    job_id, node = 41_000, 0
    while node < n_nodes:
        first = node * n_gpus
        if rng.random() < 0.012:
            _set(world, range(first, first + n_gpus), OUT, None)
            node += 1
        elif rng.random() < 0.06:
            _set(world, range(first, first + n_gpus), FREE, 0)
            node += 1
        elif rng.random() < 0.13:
            span = min(rng.choice([2, 4, 8, 16]), n_nodes - node)
            job_id += rng.randint(1, 9)
            _run(world, rng, job_id, rng.choice(users), [(first, first + span * n_gpus - 1)], span)
            node += span
        else:
            square, end = first, first + n_gpus
            while square < end:
                if rng.random() < 0.09:
                    _set(world, [square], FREE, 0)
                    square += 1
                    continue
                size = min(rng.choice([1, 1, 2, 4, 8]), end - square)
                job_id += rng.randint(1, 9)
                _run(world, rng, job_id, rng.choice(users), [(square, square + size - 1)], 1)
                square += size
            node += 1
        if rng.random() < 0.006:  # its slurm-gpud is silent
            for frame in ("util", "mem", "power", "temp", "clock", "p25_util"):
                world.frames[frame][first : first + n_gpus] = bytes([GAP]) * n_gpus
            for square in range(first, first + n_gpus):
                if state[square] == FREE:
                    state[square] = UNWATCHED
    for _ in range(max(3, n_nodes // 10)):
        job_id += 1
        _wait(world, rng, job_id, rng.choice(users))
    world.alerts.sort(key=lambda alert: (alert["alert"] != "xid", alert["since_s"]))


def _set(world: World, squares: Any, state: int, util: int | None) -> None:
    for square in squares:
        world.frames["state"][square] = state
        if util is not None:
            world.frames["util"][square] = util
            world.frames["mem"][square] = 0
            world.frames["power"][square] = 23
            world.frames["temp"][square] = 31


def _run(
    world: World, rng: random.Random, job_id: int, user: str, ranges: list[tuple[int, int]], n_nodes: int
) -> None:
    started = NOW_S - rng.randint(60, 3 * 86400)
    squares = [square for first, last in ranges for square in range(first, last + 1)]
    kind = rng.random()
    level = 0 if kind < 0.05 else rng.randint(2, 30) if kind < 0.2 else rng.randint(45, 99)
    for square in squares:
        util = min(100, max(0, level + (rng.randint(-7, 5) if level else 0)))
        world.frames["state"][square] = ALLOCATED
        world.frames["util"][square] = util
        world.frames["mem"][square] = min(100, 20 + rng.randint(0, 70))
        world.frames["power"][square] = min(233, 25 + 2 * util)
        world.frames["temp"][square] = 32 + util // 2 + rng.randint(0, 5)
        world.frames["clock"][square] = 100 if util else 15
        world.frames["p25_util"][square] = max(0, util - 12)
    world.jobs[job_id] = {
        "id": str(job_id) if rng.random() < 0.8 else f"{job_id - 3}_{rng.randint(0, 40)}",
        "job_id": job_id,
        "full": True,
        "user": user,
        "account": rng.choice(["vision", "nlp", "bio"]),
        "partition": "gpu",
        "state": "RUNNING",
        "reason": "",
        "n_gpus": len(squares),
        "n_nodes": n_nodes,
        "n_tasks": 1,
        "submit_s": started - rng.randint(1, 9000),
        "start_s": started,
        "end_s": NOW_S + rng.randint(600, 2 * 86400),
        "name": rng.choice(["train", "eval", "sweep", "llm-8b"]),
        "squares": [list(one) for one in ranges],
        "shared_squares": [],
    }
    if (level == 0 and rng.random() < 0.5) or rng.random() < 0.01:
        world.alerts.append(
            {
                "job_id": job_id,
                "id": world.jobs[job_id]["id"],
                "user": user,
                "alert": "never_used" if level == 0 else rng.choice(_CONCERNS),
                "squares": [list(one) for one in ranges],
                "since_s": started + 30,
                "coverage": 1.0,
            }
        )


def _wait(world: World, rng: random.Random, job_id: int, user: str) -> None:
    world.jobs[job_id] = {
        "id": str(job_id),
        "job_id": job_id,
        "full": True,
        "user": user,
        "account": "nlp",
        "partition": "gpu",
        "state": "PENDING",
        "reason": rng.choice(_REASONS),
        "n_gpus": rng.choice([1, 2, 4, 8, 64]),
        "n_nodes": 1,
        "n_tasks": 1,
        "submit_s": NOW_S - rng.randint(60, 90_000),
        "end_s": None,
        "start_s": NOW_S + 7200 if rng.random() < 0.3 else None,
        "name": "queued",
        "squares": [],
        "shared_squares": [],
    }


def _reservations() -> list[dict[str, Any]]:
    def one(number: int, user: str, gpus: int, state: str, start: float, days: float) -> dict[str, Any]:
        begins = int(NOW_S + start * 86400)
        return {
            "id": number,
            "cluster": "neuron",
            "user": user,
            "account": "vision",
            "partition": "gpu",
            "gpus": gpus,
            "gpu_type": "h100",
            "n_nodes": gpus // 8,
            "duration_s": int(days * 86400),
            "earliest_s": begins,
            "latest_s": None,
            "why": None,
            "state": state,
            "requested_s": NOW_S - 86400,
            "start_s": None if state == "requested" else begins,
            "end_s": None if state == "requested" else int(begins + days * 86400),
            "nodes": None if state == "requested" else "n[0101-0116]",
            "error": None,
            "full": True,
        }

    return [
        one(3, "carol", 128, "active", -0.4, 2),
        one(4, "dave", 256, "approved", 2.5, 3),
        one(5, "heidi", 64, "requested", 4, 1.5),
    ]


def _limits() -> list[dict[str, Any]]:
    def one(
        on: str, key: str, unit: str, used: float | None, limit: float, per: str = "user"
    ) -> dict[str, Any]:
        left = None if used is None else limit - used
        return {
            "rule": "grad-share",
            "group": "grads",
            "per": per,
            "on": on,
            "key": key,
            "unit": unit,
            "used": used,
            "limit": limit,
            "left": left,
            "mode": "enforce",
            "why": "16 each keeps waiting under a day.",
            "until_s": None,
        }

    return [
        one("GPUs running", "gpus_running", "GPUs", 12, 16),
        one("GPUs running + pending", "gpus_total", "GPUs", 32, 32),
        one("jobs running + pending", "jobs_total", "count", 41, 200),
        one("each job's time limit", "walltime", "s", None, 86400, "job"),
    ]
