"""The limits once more, in the plainest Python: what the Lua must agree with.

Written from docs/contracts.md and docs/policy.md, not from the Lua. Works on requests as numbers, not on
Slurm's strings. The cluster that it knows stands in PARTITIONS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

SHARDS_PER_GPU = 4
NORMAL_LIMIT_S = 3600
"""What the partition gives to a job without --time."""


@dataclass(frozen=True)
class PartitionModel:
    """What each node of a partition has."""

    cpus: int
    mib: int
    gpu_types: frozenset[str]


PARTITIONS = {
    "gpu": PartitionModel(32, 100_000, frozenset({"a100"})),
    "long": PartitionModel(16, 50_000, frozenset({"a100", "v100"})),
}
DEFAULT_MIB_PER_GPU = 16384
DEFAULT_MIB_PER_CPU = 1024
GPU_TYPES = ("a100", "v100")


@dataclass(frozen=True)
class Request:
    """One submission, or a job that it became."""

    uid: int
    account: str
    partition: str = "gpu"
    per_job: int | None = None
    per_node: int | None = None
    per_task: int | None = None
    shards_per_node: int | None = None
    gpu_type: str | None = None
    """As it was asked for; GPUs per node are of type a100 where nothing else is said."""
    nodes: int | None = None
    most_nodes: int | None = None
    """Upper end of --nodes=1-3."""
    n_tasks: int | None = None
    array_tasks: int | None = None
    minutes: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    mib_per_node: int | None = None
    mib_per_cpu: int | None = None
    mib_per_gpu: int | None = None
    interactive: bool = False
    given_type: str | None = None
    """The type of GPU that a running job got."""

    @property
    def counted_nodes(self) -> int:
        return max(self.nodes or 1, self.most_nodes or 1)  # Slurm gives all that are free

    @property
    def tasks(self) -> int:
        return self.counted_nodes if self.n_tasks is None else self.n_tasks

    @property
    def mgpu(self) -> int:
        """Of one array task."""
        per_node = 1000 * (self.per_node or 0) + 250 * (self.shards_per_node or 0)
        return max(
            1000 * (self.per_job or 0),
            per_node * self.counted_nodes,
            1000 * (self.per_task or 0) * self.tasks,
        )

    @property
    def only_shards(self) -> bool:
        return self.shards_per_node is not None and self.per_node is None

    @property
    def named_type(self) -> str | None:
        if self.per_node is not None and self.gpu_type is None:
            return "a100"
        return None if self.only_shards else self.gpu_type

    def mgpu_of(self, gpu_type: str) -> int:
        """What counts against a limit of one type: GPUs that may be of it."""
        named = self.given_type or self.named_type
        if named is not None:
            return self.mgpu if named == gpu_type else 0
        may_be = any(gpu_type in PARTITIONS[name].gpu_types for name in self.partition.split(","))
        return self.mgpu if may_be else 0

    @property
    def cpus(self) -> int:
        each = 1 if self.cpus_per_task is None else self.cpus_per_task
        by_gpu = math.ceil(self.mgpu * (self.cpus_per_gpu or 0) / 1000)
        return max(self.tasks * each, self.counted_nodes * each, by_gpu)

    @property
    def mib(self) -> float:
        if self.mib_per_node == 0:
            return self.counted_nodes * min(PARTITIONS[name].mib for name in self.partition.split(","))
        if self.mib_per_node is not None:
            return self.counted_nodes * self.mib_per_node
        if self.mib_per_cpu is not None:
            return self.cpus * self.mib_per_cpu
        if self.mib_per_gpu is not None:
            return self.mgpu * self.mib_per_gpu / 1000
        if self.mgpu > 0 and not self.only_shards:
            return self.mgpu * DEFAULT_MIB_PER_GPU / 1000
        return self.cpus * DEFAULT_MIB_PER_CPU

    @property
    def jobs(self) -> int:
        return 1 if self.array_tasks is None else self.array_tasks

    @property
    def walltime_s(self) -> float:
        return NORMAL_LIMIT_S if self.minutes is None else self.minutes * 60

    @property
    def gpu_hours(self) -> float:
        return self.mgpu * self.jobs * self.walltime_s / 3600 / 1000

    def measure(self, name: str) -> float:
        """Of one array task: gpus, gpus:TYPE, cpus or memory."""
        base, _, gpu_type = name.partition(":")
        if base == "gpus":
            return self.mgpu_of(gpu_type) if gpu_type else self.mgpu
        return {"cpus": self.cpus, "memory": self.mib, "jobs": 1}[base]


Limit = float | frozenset[str] | tuple[tuple[int, int], ...]
"""A number, allowed names, or walltimes (from mgpu on, seconds)."""


@dataclass(frozen=True)
class When:
    """Days (0 is Monday) and minutes since midnight, UTC."""

    days: frozenset[int]
    from_min: int
    to_min: int

    def holds(self, second: int) -> bool:
        day, rest = divmod(second, 86400)
        return (day + 3) % 7 in self.days and self.from_min <= rest // 60 < self.to_min


@dataclass(frozen=True)
class RuleModel:
    """One rule with its group's conditions flattened into it."""

    id: str
    per: str
    mode: str = "enforce"
    users: frozenset[int] | None = None
    accounts: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    kind: str | None = None
    when: When | None = None
    limits: dict[str, Limit] = field(default_factory=dict)
    exceptions: dict[int, dict[str, Limit]] = field(default_factory=dict)

    def binds(self, request: Request) -> bool:
        return (
            (self.users is None or request.uid in self.users)
            and (self.accounts is None or request.account in self.accounts)
            and (self.partitions is None or bool(self.partitions & set(request.partition.split(","))))
            and (self.kind is None or (self.kind == "interactive") == request.interactive)
        )

    def limits_for(self, uid: int) -> dict[str, Limit]:
        own = self.exceptions.get(uid, {})
        return {key: own.get(key, value) for key, value in self.limits.items()}


@dataclass(frozen=True)
class BundleModel:
    """A resource type."""

    name: str
    mgpu: int
    cpus: int | None = None
    mib: int | None = None
    partitions: frozenset[str] | None = None
    gpu_types: frozenset[str] | None = None
    mode: str = "advise"

    def suits(self, request: Request) -> bool:
        if (self.mgpu > 0) != (request.mgpu > 0):
            return False
        names = request.partition.split(",")
        if self.partitions is not None and not self.partitions & set(names):
            return False
        if self.gpu_types is None or request.mgpu == 0:
            return True
        if request.named_type is not None:
            return request.named_type in self.gpu_types
        return any(self.gpu_types & PARTITIONS[name].gpu_types for name in names)

    def cpus_for(self, request: Request) -> int | None:
        units = request.mgpu / self.mgpu if self.mgpu else 1
        return None if self.cpus is None else math.ceil(self.cpus * units - 1e-9)

    def mib_for(self, request: Request) -> float | None:
        units = request.mgpu / self.mgpu if self.mgpu else 1
        return None if self.mib is None else self.mib * units


def bundle_of(bundles: list[BundleModel], request: Request) -> BundleModel | None:
    return next((bundle for bundle in bundles if bundle.suits(request)), None)


def fitted(bundles: list[BundleModel], request: Request) -> Request:
    """The request as it is after a bundle filled in what it left unsaid."""
    bundle = bundle_of(bundles, request)
    if bundle is None or bundle.mode != "fit" or request.mgpu == 0:
        return request
    cpus, mib, gpus = bundle.cpus_for(request), bundle.mib_for(request), request.mgpu / 1000
    said_nothing = request.cpus_per_task is None and request.cpus_per_gpu is None
    full = request
    if cpus is not None and said_nothing and cpus > max(request.tasks, request.counted_nodes):
        if not request.only_shards and math.floor(cpus / gpus) >= 1:
            full = replace(full, cpus_per_gpu=math.floor(cpus / gpus))
        elif request.tasks == 1:
            full = replace(full, cpus_per_task=cpus)
    if mib is not None and request.mib_per_node is request.mib_per_cpu is request.mib_per_gpu is None:
        if not request.only_shards:
            if math.floor(mib / gpus) >= 1:
                full = replace(full, mib_per_gpu=math.floor(mib / gpus))
        elif math.floor(mib / request.counted_nodes) >= 1:
            full = replace(full, mib_per_node=math.floor(mib / request.counted_nodes))
    return full


def bundle_violations(bundles: list[BundleModel], request: Request) -> set[str]:
    bundle = bundle_of(bundles, request)
    if bundle is None:
        for_cpus = [one for one in bundles if one.mgpu == 0 and one.partitions is not None]
        if request.mgpu == 0 and for_cpus and for_cpus[0].mode == "enforce":
            return {f"bundle.{for_cpus[0].name}:partitions"}
        return set()
    if bundle.mode != "enforce":
        return set()
    cpus, mib = bundle.cpus_for(request), bundle.mib_for(request)
    found = set()
    if cpus is not None and request.cpus > cpus:
        found.add(f"bundle.{bundle.name}:cpus")
    if mib is not None and request.mib > mib:
        found.add(f"bundle.{bundle.name}:memory")
    return found


def beyond(key: str, limit: Limit, request: Request, counted: list[Request], used_hours: float) -> bool:
    """Whether the request goes beyond one limit, given the jobs that count for it."""
    base, _, part = key.partition(":")
    if base.endswith("_total"):
        measure = base.removesuffix("_total") + (f":{part}" if part else "")
        asked = request.measure(measure) * request.jobs
        assert isinstance(limit, int | float)
        return asked > 0 and sum(job.measure(measure) * job.jobs for job in counted) + asked > limit
    if base == "partitions":
        assert isinstance(limit, frozenset)
        return not set(request.partition.split(",")) <= limit
    if base == "gpu_types":
        assert isinstance(limit, frozenset)
        if request.mgpu == 0:
            return False
        if request.named_type is not None:
            return request.named_type not in limit
        return not all(PARTITIONS[name].gpu_types <= limit for name in request.partition.split(","))
    if isinstance(limit, tuple):
        reached = [seconds for mgpu, seconds in limit if request.mgpu >= mgpu]
        return bool(reached) and request.walltime_s > reached[-1]
    assert isinstance(limit, int | float)
    gpus = request.mgpu / 1000
    if base == "gpu_hours":
        return request.mgpu > 0 and used_hours + request.gpu_hours > limit
    if base in ("cpus_per_gpu", "memory_per_gpu"):
        if request.mgpu == 0:
            return False
        if base == "cpus_per_gpu":
            return request.cpus > math.ceil(limit * gpus - 1e-9)
        return request.mib > limit * gpus
    if base == "array_tasks":
        return request.array_tasks is not None and request.array_tasks > limit
    asked = {
        "nodes": request.counted_nodes,
        "tasks": request.tasks,
        "walltime": request.walltime_s,
    }.get(base)
    return (request.measure(key) if asked is None else asked) > limit


def violations(
    rules: list[RuleModel],
    queue: list[Request],
    request: Request,
    *,
    now: int = 0,
    bundles: list[BundleModel] | None = None,
    used_hours: dict[tuple[str, int | None], float] | None = None,
) -> set[str]:
    """`rule:key` of every limit that the request would go beyond, given what runs and pends.

    `used_hours`: GPU-hours by (rule id, uid, or None for the whole group).
    """
    request = fitted(bundles or [], request)
    found = bundle_violations(bundles or [], request)
    for rule in rules:
        if not rule.binds(request) or rule.mode != "enforce" or (rule.when and not rule.when.holds(now)):
            continue
        counted = [
            job for job in queue if rule.binds(job) and (rule.per == "group" or job.uid == request.uid)
        ]
        hours = (used_hours or {}).get((rule.id, request.uid if rule.per == "user" else None), 0.0)
        found |= {
            f"{rule.id}:{key}"
            for key, limit in rule.limits_for(request.uid).items()
            if beyond(key, limit, request, counted, hours)
        }
    if (request.shards_per_node or 0) > SHARDS_PER_GPU:
        found.add("one-gpu:shards")
    return found
