"""The limits once more, in the plainest Python: what the Lua must agree with.

Written from docs/contracts.md, not from the Lua. Works on requests as numbers, not on Slurm's strings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SHARDS_PER_GPU = 4
NORMAL_LIMIT_S = 3600
"""What the partition gives to a job without --time."""


@dataclass(frozen=True)
class Request:
    """One submission."""

    uid: int
    account: str
    partition: str = "gpu"
    per_job: int | None = None
    per_node: int | None = None
    per_task: int | None = None
    shards_per_node: int | None = None
    nodes: int | None = None
    most_nodes: int | None = None
    """Upper end of --nodes=1-3."""
    n_tasks: int | None = None
    array_tasks: int | None = None
    minutes: int | None = None

    @property
    def mgpu(self) -> int:
        """Of one array task."""
        nodes = max(self.nodes or 1, self.most_nodes or 1)  # Slurm gives all that are free
        tasks = nodes if self.n_tasks is None else self.n_tasks
        per_node = 1000 * (self.per_node or 0) + 250 * (self.shards_per_node or 0)
        return max(1000 * (self.per_job or 0), per_node * nodes, 1000 * (self.per_task or 0) * tasks)

    @property
    def jobs(self) -> int:
        return 1 if self.array_tasks is None else self.array_tasks

    @property
    def walltime_s(self) -> float:
        return NORMAL_LIMIT_S if self.minutes is None else self.minutes * 60


@dataclass(frozen=True)
class RuleModel:
    """One rule with its group's conditions flattened into it."""

    id: str
    per: str
    mode: str = "enforce"
    users: frozenset[int] | None = None
    accounts: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    limits: dict[str, float] = field(default_factory=dict)
    exceptions: dict[int, dict[str, float]] = field(default_factory=dict)

    def binds(self, request: Request) -> bool:
        return (
            (self.users is None or request.uid in self.users)
            and (self.accounts is None or request.account in self.accounts)
            and (self.partitions is None or bool(self.partitions & set(request.partition.split(","))))
        )

    def limit(self, key: str, uid: int) -> float:
        value = self.limits.get(key, math.inf)
        return self.exceptions.get(uid, {}).get(key, value) if key in self.limits else math.inf


def violations(rules: list[RuleModel], queue: list[Request], request: Request) -> set[str]:
    """`rule:key` of every limit that the request would go beyond, given what runs and pends."""
    found = set()
    for rule in rules:
        if not rule.binds(request):
            continue
        counted = [
            job for job in queue if rule.binds(job) and (rule.per == "group" or job.uid == request.uid)
        ]
        gpus = sum(job.mgpu * job.jobs for job in counted)
        jobs = sum(job.jobs for job in counted)
        asked = request.mgpu * request.jobs
        checks = {
            "gpus": request.mgpu > rule.limit("gpus", request.uid),
            "gpus_total": asked > 0 and gpus + asked > rule.limit("gpus_total", request.uid),
            "jobs_total": jobs + request.jobs > rule.limit("jobs_total", request.uid),
            "walltime": request.walltime_s > rule.limit("walltime", request.uid),
        }
        found |= {
            f"{rule.id}:{key}" for key, exceeded in checks.items() if exceeded and rule.mode == "enforce"
        }
    if (request.shards_per_node or 0) > SHARDS_PER_GPU:
        found.add("one-gpu:shards")
    return found
