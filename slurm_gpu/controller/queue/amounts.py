"""Count the resources of one task of a job as job_submit.lua does, with GPUs in mgpu (thousandths)."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.slurm.tres import GPU_GRES, Gres, SharesPerGpu, amount, count_mgpu, parse_gres, parse_tres
from slurm_gpu.text.hostlist import expand

_GRES = "gres/"
# The number of MPS per GPU that Slurm's documentation recommends and job_submit.lua assumes.
_MPS_PER_GPU = 100


@dataclass(frozen=True, slots=True)
class Amounts:
    """Resources of one task; `mgpu_by_type` contains the part of `mgpu` with a known type."""

    mgpu: int
    cpus: int
    mib: int
    nodes: int
    mgpu_by_type: Mapping[str, int] = field(default_factory=dict)
    billing: int = 0
    """Slurm's billing units; those of a pending job are for its first partition."""


@dataclass(frozen=True, slots=True)
class CountingFacts:
    """Facts about the cluster that are needed to count resources."""

    shards_per_gpu: int | None = None
    """Number of shards per GPU; None if no node has shards, in which case requests for shards are ignored."""
    mps_per_gpu: int | None = None
    """Number of MPS per GPU; None if no node has MPS, in which case 100 MPS count as one GPU."""
    partition_gpus: Mapping[str, int] = field(default_factory=dict)
    """The minimum number of GPUs per node in each partition, for jobs with exclusive nodes."""
    whole_partitions: frozenset[str] = frozenset()
    """Partitions in which all jobs have exclusive nodes."""
    partition_cpus: Mapping[str, int] = field(default_factory=dict)
    partition_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The GPU types in each partition."""
    default_mib_per_cpu: int | None = None
    """DefMemPerCPU in slurm.conf; Slurm includes it in its total if a job requests no memory."""
    partition_limits_s: Mapping[str, float | None] = field(default_factory=dict)
    """The time limit of a job without --time in each partition; None if there is none."""
    node_types: Mapping[str, str] = field(default_factory=dict)
    """The GPU type of nodes with a single type, used if Slurm's totals contain no type."""


def amounts_of(job: CountedJob, facts: CountingFacts) -> Amounts:
    """Return the resources of one task of a job; Slurm's total replaces a request that cannot be parsed."""
    tres = _totals(job.tres)
    if job.phase is JobPhase.PENDING:
        return _requested(job, tres, facts)
    found = allocated_amounts(tres, job.nodes, facts)
    if found.mgpu == 0:
        # Just after a restart, slurmctld 22.05 starts jobs without their GPUs; the requested GPUs count.
        mgpu, typed = _asked(job, max(job.n_nodes, 1), facts)
        found = replace(found, mgpu=mgpu, mgpu_by_type=typed)
    return replace(found, nodes=job.n_nodes, billing=_billing(tres, 1, found.cpus))


def allocated_amounts(tres: Mapping[str, float], nodes: str, facts: CountingFacts) -> Amounts:
    """Return the amounts in Slurm's total of a job's resources on these nodes; `nodes` of the result is 0.

    GPUs and parts of GPUs without a type in the total are of the type of the nodes, if all nodes have the
    same one.
    """
    mgpu, typed = mgpu_of_total(tres, facts), {kind: n * 1000 for kind, n in _typed(tres).items()}
    untyped = mgpu - sum(typed.values())
    if untyped > 0 and (kind := _type_of(nodes, facts.node_types)):
        typed[kind] = typed.get(kind, 0) + untyped
    return Amounts(mgpu, _whole(tres, "cpu"), _whole(tres, "mem"), 0, typed, _whole(tres, "billing"))


def possible_types(partitions: str, facts: CountingFacts) -> frozenset[str] | None:
    """Return the GPU types in these partitions, which are separated by commas; None if they are unknown."""
    sets = [facts.partition_types.get(name) for name in partitions.split(",")]
    known = [kinds for kinds in sets if kinds is not None]
    return frozenset[str]().union(*known) if len(known) == len(sets) else None


def least_amounts_of(job: CountedJob, facts: CountingFacts) -> Amounts:
    """Return the resources of one task of a job on the fewest nodes that it allows."""
    if job.phase is not JobPhase.PENDING:
        return amounts_of(job, facts)
    return amounts_of(replace(job, n_nodes=_whole(_totals(job.tres), "node")), facts)


def limit_of(job: CountedJob, facts: CountingFacts) -> float:
    """Return the time limit of a job in seconds, infinite if there is none."""
    if job.limit_s is not None:
        return job.limit_s
    limits = [facts.partition_limits_s.get(name) for name in job.partition.split(",")]
    return max(math.inf if limit_s is None else limit_s for limit_s in limits)


def asked_gpu_types(job: CountedJob) -> frozenset[str]:
    """Return the GPU types that a job names, in lower case; empty if the job accepts any type."""
    return frozenset(kind for kind in asked_gpus(job) if kind is not None)


def asked_gpus(job: CountedJob) -> frozenset[str | None]:
    """Return the types of the GPUs that a job requests, in lower case; None for GPUs without a type."""
    texts = (job.per_job, job.per_node, job.per_socket, job.per_task)
    entries = (entry for text in texts for entry in _entries(text) if entry.count)
    return frozenset(entry.type.lower() if entry.type else None for entry in entries)


def _requested(job: CountedJob, tres: Mapping[str, float], facts: CountingFacts) -> Amounts:
    nodes = max(job.n_nodes, 1)
    # Slurm's total assumes the minimum number of nodes; a job that requests a range may get the maximum.
    times = nodes / max(_whole(tres, "node"), 1)
    mgpu, typed = _asked(job, nodes, facts)
    # For requests per task or per socket, only Slurm's total includes the number of tasks or sockets. GPUs
    # per task may have a different type from GPUs that are requested in another form; both are then counted.
    if mgpu == 0 or any(word in job.per_task for word in GPU_GRES):
        gpu_times = times if job.per_socket else 1
        for name, count in _types_of_total(job, tres, facts).items():
            typed[name] = max(typed.get(name, 0), _round(count * 1000 * gpu_times))
        mgpu = max(mgpu, _round(mgpu_of_total(tres, facts) * gpu_times), sum(typed.values()))
    cpus = max(_round(_whole(tres, "cpu") * times), job.n_cpus)
    partitions = job.partition.split(",")
    if job.exclusive or facts.whole_partitions.issuperset(partitions):
        mgpu = max(mgpu, min(facts.partition_gpus.get(name, 0) for name in partitions) * nodes * 1000)
        cpus = max(cpus, min(facts.partition_cpus.get(name, 0) for name in partitions) * nodes)
    if mgpu and not typed and (kind := _only_type(partitions, facts)):
        typed = {kind: mgpu}
    per_gpu = _per_gpu(job.cpus_per_gpu)
    cpus = max(cpus, math.ceil(per_gpu * mgpu / 1000))
    mib = _memory(job, tres, facts, mgpu, times)
    return Amounts(mgpu, cpus, mib, nodes, typed, _billing(tres, times, cpus))


def _billing(tres: Mapping[str, float], times: float, cpus: int) -> int:
    """Return the billing units in Slurm's total, multiplied by `times`; without weights, return the CPUs.

    Slurm omits a total of 0.
    """
    total = _whole(tres, "billing")
    return cpus if total == _whole(tres, "cpu") else _round(total * times)


def _asked(job: CountedJob, nodes: int, facts: CountingFacts) -> tuple[int, dict[str, int]]:
    """Return the larger of the GPUs requested per job and per node, in total and by type."""
    mgpu, most = 0, Counter[str]()
    # From 24.11 on, each node gets at least one of the GPUs per job.
    for text, count, least in ((job.per_job, 1, nodes), (job.per_node, nodes, 0)):
        entries = _entries(text)
        mgpu = max(mgpu, mgpu_of_total(_sums(entries, count, least), facts))
        most |= _types(entries, count, least)
    typed = {kind: n * 1000 for kind, n in most.items()}
    return max(mgpu, sum(typed.values())), typed


def _types_of_total(job: CountedJob, tres: Mapping[str, float], facts: CountingFacts) -> dict[str, int]:
    """Return the number of GPUs of each type in Slurm's total for a pending job.

    If tasks request exactly one type that Slurm does not track, the GPUs that remain after all other types
    count as that type.
    """
    types = _typed(tres)
    untracked = _types(_entries(job.per_task)).keys() - types.keys()
    if len(untracked) == 1:
        (kind,) = untracked
        _, asked = _asked(job, max(_whole(tres, "node"), 1), facts)
        others = {other: mgpu // 1000 for other, mgpu in asked.items() if other != kind} | types
        if (left := int(amount(tres, "gpu")) - sum(others.values())) > 0:
            types[kind] = left
    return types


def _memory(job: CountedJob, tres: Mapping[str, float], facts: CountingFacts, mgpu: int, times: float) -> int:
    """Return the memory of a pending job in MiB.

    Slurm allocates DefMemPerGPU but does not include it in the total of a pending job.
    """
    total = _round(_whole(tres, "mem") * times)
    by_gpu = _round(_per_gpu(job.mib_per_gpu) * mgpu / 1000)
    asked = job.mib_per_gpu.startswith("gres")
    by_default = facts.default_mib_per_cpu is not None and (
        _whole(tres, "mem") == facts.default_mib_per_cpu * _whole(tres, "cpu")
    )
    return max(total, by_gpu) if asked or by_default else total


def _per_gpu(text: str) -> int:
    """Return the amount per GPU in a text such as "gres:gpu:8"; 0 if the text has no amount."""
    return max((entry.count for entry in _entries(text) if entry.name == "gpu"), default=0)


def _only_type(partitions: Iterable[str], facts: CountingFacts) -> str | None:
    """Return the GPU type of a job in these partitions; None if several types are possible or unknown."""
    sets = [facts.partition_types.get(name, frozenset()) for name in partitions]
    kinds = frozenset[str]().union(*sets)
    return next(iter(kinds)) if all(sets) and len(kinds) == 1 else None


@functools.lru_cache(maxsize=4096)
def _totals(text: str) -> Mapping[str, float]:
    try:
        return parse_tres(text)
    except ValueError:
        return {}


@functools.lru_cache(maxsize=4096)
def _entries(text: str) -> tuple[Gres, ...]:
    try:
        return tuple(parse_gres(text))
    except ValueError:
        return ()


def _sums(entries: tuple[Gres, ...], times: int, least: int) -> dict[str, float]:
    sums: dict[str, float] = {}
    for entry in entries:
        sums[_GRES + entry.name] = sums.get(_GRES + entry.name, 0) + _count(entry, times, least)
    return sums


def _types(entries: tuple[Gres, ...], times: int = 1, least: int = 0) -> Counter[str]:
    types: Counter[str] = Counter()
    for entry in entries:
        if entry.name == "gpu" and entry.type:
            types[entry.type.lower()] += _count(entry, times, least)
    return types


def _count(entry: Gres, times: int, least: int) -> int:
    return max(entry.count * times, least) if entry.count else 0


def _typed(tres: Mapping[str, float]) -> dict[str, int]:
    prefix = f"{_GRES}gpu:"
    return {name[len(prefix) :].lower(): int(n) for name, n in tres.items() if name.startswith(prefix)}


def mgpu_of_total(tres: Mapping[str, float], facts: CountingFacts) -> int:
    """Return the mgpu in a total such as {"gres/gpu": 2, "gres/shard": 3}.

    Shards are ignored if no node has shards.
    """
    if facts.shards_per_gpu is None:
        tres = {name: n for name, n in tres.items() if not name.startswith(f"{_GRES}shard")}
    mps_per_gpu = _MPS_PER_GPU if facts.mps_per_gpu is None else facts.mps_per_gpu
    return count_mgpu(tres, SharesPerGpu(facts.shards_per_gpu, mps_per_gpu)) or 0


@functools.lru_cache(maxsize=4096)
def _hosts(expression: str) -> tuple[str, ...]:
    try:
        return tuple(expand(expression))
    except ValueError:
        return ()


def _type_of(nodes: str, node_types: Mapping[str, str]) -> str | None:
    """Return the GPU type of these nodes; None if they have several types or the type is unknown."""
    kinds = {node_types.get(name) for name in _hosts(nodes)}
    return kinds.pop() if len(kinds) == 1 else None


def _whole(tres: Mapping[str, float], name: str) -> int:
    return math.ceil(tres.get(name, 0))


def _round(value: float) -> int:
    """Round halves up, as job_submit.lua does; Python's round() rounds halves to even numbers."""
    return math.floor(value + 0.5)
