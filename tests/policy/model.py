"""Model jobs, rules and bundles as numbers for the independent model of the policy (judgement.py).

This module is written from docs/contracts.md and docs/policy.md, not from the Lua. Requests consist of
numbers, not of Slurm's strings. PARTITIONS describes the cluster.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from zoneinfo import ZoneInfo

SHARDS_PER_GPU = 4
# The time limit that the partition gives to a job without --time.
NORMAL_LIMIT_S = 3600


@dataclass(frozen=True)
class PartitionModel:
    """The resources of each node of a partition."""

    gpus: int
    cpus: int
    mib: int
    gpu_types: frozenset[str]
    max_s: float = math.inf
    """The maximum time limit of a job, in seconds."""
    weights: Mapping[str, Fraction] = field(default_factory=dict)
    """The billing weights of CPUs (cpu), GiB of memory (mem), nodes, GPUs, shards and GPUs of each type."""


# Binary fractions, so that billing units do not depend on the order in which they are added.
WEIGHTS = {
    "cpu": Fraction(1),
    "mem": Fraction(1, 4),
    "node": Fraction(1, 2),
    "gres/gpu": Fraction(2),
    "gres/gpu:a100": Fraction(3, 2),
    "gres/shard": Fraction(3, 4),
    "gres/mps": Fraction(1, 64),
}
PARTITIONS = {
    "gpu": PartitionModel(4, 32, 100_000, frozenset({"a100"}), weights=WEIGHTS),
    "long": PartitionModel(2, 16, 50_000, frozenset({"a100", "v100"}), max_s=3600),
}
DEFAULT_MIB_PER_GPU = 16384
DEFAULT_MIB_PER_CPU = 1024
GPU_TYPES = ("a100", "v100")


@dataclass(frozen=True, repr=False)
class Request:
    """One submission, or the job in the queue that it became."""

    uid: int
    account: str
    partition: str = "gpu"
    qos: str = "normal"
    per_job: int | None = None
    per_node: int | None = None
    per_task: int | None = None
    per_socket: int | None = None
    tasks_per_gpu: int | None = None
    """The number of tasks that share a GPU, given n_tasks."""
    shards_per_node: int | None = None
    mps_per_node: int | None = None
    """Hundredths of a GPU."""
    gpu_type: str | None = None
    """The type in the request; GPUs per node are of type a100 by default."""
    nodes: int | None = None
    most_nodes: int | None = None
    """Upper end of --nodes=1-3."""
    listed_nodes: int | None = None
    """Nodes in a list, which clients other than sbatch submit without a number of nodes."""
    feature_nodes: tuple[int, ...] = ()
    """The counts in a constraint [a*1&b*2], also submitted without a number of nodes."""
    sockets: int | None = None
    n_tasks: int | None = None
    tasks_per_node: int | None = None
    array_tasks: int | None = None
    minutes: int | None = None
    """0 requests unlimited time."""
    min_cpus: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    mib_per_node: int | None = None
    mib_per_cpu: int | None = None
    mib_per_gpu: int | None = None
    constraint: str | None = None
    """--constraint, which the record of a queued job lacks; without the counts in `feature_nodes`."""
    name: str = "train"
    begin_s: int | None = None
    """--begin, which the record of a queued job lacks."""
    exclusive: bool = False
    interactive: bool = False
    given_type: str | None = None
    """The type of the GPUs allocated to a running job."""

    def __repr__(self) -> str:
        """Show only the fields that differ from their defaults."""
        said = [(one.name, getattr(self, one.name), one.default) for one in dataclasses.fields(self)]
        shown = (f"{name}={value!r}" for name, value, default in said if value != default)
        return f"Request({', '.join(shown)})"

    @property
    def partitions(self) -> list[str]:
        return self.partition.split(",")

    @property
    def least_nodes(self) -> int:
        named = max(self.nodes or 1, self.listed_nodes or 1, sum(self.feature_nodes))
        if self.n_tasks is None or self.tasks_per_node is None:
            return named
        return max(named, math.ceil(self.n_tasks / self.tasks_per_node))

    @property
    def groups(self) -> int:
        """Return the number of groups of CPUs; each group has the CPUs of one task, on one node."""
        nodes = self.nodes or 1
        tasks = nodes * (self.tasks_per_node or 1) if self.n_tasks is None else max(self.n_tasks, nodes)
        return max(tasks, math.ceil((self.min_cpus or 0) / (self.cpus_per_task or 1)))

    def nodes_in(self, partition: PartitionModel) -> int | None:
        """Return the number of nodes that the groups of CPUs need; None if no node suits the job."""
        each_node = [1, self.per_node or 0, self.per_task or 0, self.per_socket or 0]
        if (self.mgpu_is_asked and max(each_node) > partition.gpus) or partition.mib < (
            self.mib_per_node or 0
        ):
            return None
        cpus = partition.cpus
        if self.mib_per_cpu is not None and self.mib_per_node is None:
            cpus = min(cpus, partition.mib // self.mib_per_cpu)
        on_each = cpus // (self.cpus_per_task or 1)
        return math.ceil(self.groups / on_each) if on_each else None

    @property
    def mgpu_is_asked(self) -> bool:
        forms = (self.per_job, self.per_node, self.per_task, self.per_socket, self.tasks_per_gpu)
        return any((*forms, self.shards_per_node, self.mps_per_node))

    @property
    def needed_nodes(self) -> list[int | None]:
        """Return the nodes that the job needs, by partition."""
        if self.most_nodes or self.groups == 1:
            return [1]
        return [self.nodes_in(PARTITIONS[name]) for name in self.partitions]

    @property
    def counted_nodes(self) -> int:
        if self.most_nodes:
            return max(self.least_nodes, self.most_nodes)  # Slurm allocates all free nodes, up to the maximum
        return max(self.least_nodes, *(needed or 1 for needed in self.needed_nodes))

    @property
    def tasks(self) -> int:
        if self.n_tasks is not None:
            return self.n_tasks
        by_node = self.counted_nodes * (self.tasks_per_node or 1)
        return max(by_node, self.groups) if self.per_task else by_node

    @property
    def asked_mgpu(self) -> int:
        """Return the requested mGPU of one array task."""
        per_node = (
            1000 * (self.per_node or 0) + 250 * (self.shards_per_node or 0) + 10 * (self.mps_per_node or 0)
        )
        by_task = 0
        if self.tasks_per_gpu is not None and self.n_tasks is not None:
            by_task = math.ceil(self.n_tasks / self.tasks_per_gpu)
        return max(
            1000 * max(self.per_job, self.counted_nodes) if self.per_job else 0,
            per_node * self.counted_nodes,
            1000 * (self.per_task or 0) * self.tasks,
            1000 * (self.per_socket or 0) * self.counted_nodes * (self.sockets or 1),
            1000 * by_task,
        )

    @property
    def whole_mgpu(self) -> int:
        """Return the mGPU that come with the nodes of an exclusive job."""
        least = min(PARTITIONS[name].gpus for name in self.partitions)
        return 1000 * least * self.counted_nodes if self.exclusive else 0

    @property
    def mgpu(self) -> int:
        """Return the mGPU of one array task."""
        return max(self.asked_mgpu, self.whole_mgpu)

    @property
    def node_mgpu(self) -> float:
        """Return the most mGPU that may be on one node: all, unless the request limits them."""
        if self.whole_mgpu > self.asked_mgpu:
            return self.whole_mgpu / self.counted_nodes
        on_node = [self.asked_mgpu]
        if self.per_node or self.shards_per_node or self.mps_per_node:
            on_node.append(
                1000 * (self.per_node or 0)
                + 250 * (self.shards_per_node or 0)
                + 10 * (self.mps_per_node or 0)
            )
        if self.per_task and self.tasks_per_node:
            on_node.append(1000 * self.per_task * self.tasks_per_node)
        if self.per_socket:
            on_node.append(1000 * self.per_socket * (self.sockets or 1))
        return min(on_node)

    @property
    def each_mgpu(self) -> float:
        """Return the least mGPU that each node may have: one GPU, unless the request requires more."""
        nodes = None if self.most_nodes is None else self.counted_nodes
        per_node = (
            1000 * (self.per_node or 0) + 250 * (self.shards_per_node or 0) + 10 * (self.mps_per_node or 0)
        )
        tasks = 1
        if nodes is not None and self.tasks_per_node is not None:
            left = (
                self.tasks - (nodes - 1) * self.tasks_per_node
            )  # if each other node runs tasks_per_node tasks
            tasks = max(1, min(left, self.tasks_per_node))
        return max(
            self.asked_mgpu if nodes == 1 else min(self.asked_mgpu, 1000),
            per_node,
            1000 * (self.per_task or 0) * tasks,
            1000 * (self.per_socket or 0) * (self.sockets or 1),
            1000 * min(PARTITIONS[name].gpus for name in self.partitions) if self.exclusive else 0,
        )

    @property
    def on_fewest_nodes(self) -> Request:
        """Return the request on the fewest nodes that it allows, as minimums count it."""
        return dataclasses.replace(self, most_nodes=1)

    def names(self, option: str, need: str, *, terse: bool = False) -> bool | None:
        """Return whether the request names an option; None if the option does not apply to it.

        A `terse` user does not name defaults.
        """
        named = {
            "account": not terse,
            "array": self.array_tasks is not None,
            "constraint": bool(self.feature_nodes) or self.constraint is not None,
            "exclusive": self.exclusive,
            "gpu_type": self.names_types(need, ("per_job", "per_node", "per_task", "per_socket")),
            "mem": not (self.mib_per_node is self.mib_per_cpu is self.mib_per_gpu is None),
            "nodelist": self.listed_nodes is not None,
            "partition": not terse or self.partition != "gpu",
            "qos": not terse,
            "time": self.minutes is not None,
        }
        return named.get(option, False)

    def names_types(self, need: str, forms: Iterable[str]) -> bool | None:
        """Return whether all GPUs of these forms have a type; if types are forbidden, whether any has one.

        Return None if the request has no GPUs of these forms.
        """
        typed = [
            self.gpu_type is not None or form == "per_node"
            for form in forms
            if getattr(self, form) is not None
        ]
        if not typed and self.tasks_per_gpu is not None:
            typed = [False]
        if not typed:
            return None
        return all(typed) if need == "required" else any(typed)

    @property
    def only_parts(self) -> bool:
        """Return whether the job requests only shards or MPS percentages."""
        return (self.shards_per_node or self.mps_per_node) is not None and self.per_node is None

    @property
    def named_type(self) -> str | None:
        if not self.mgpu_is_asked:
            return None  # a type is requested only together with GPUs
        if self.per_node is not None and self.gpu_type is None:
            return "a100"
        return None if self.only_parts else self.gpu_type

    @property
    def possible_types(self) -> set[str]:
        """Return the types that the requested GPUs may have; GPUs per node have type a100 by default."""
        forms = ("per_job", "per_node", "per_task", "per_socket")
        named = {
            self.gpu_type or ("a100" if form == "per_node" else None)
            for form in forms
            if getattr(self, form) is not None
        }
        if self.shards_per_node or self.mps_per_node or not named:
            named.add(None)
        untyped = {kind for name in self.partitions for kind in PARTITIONS[name].gpu_types}
        return {kind for kind in named if kind} | (untyped if None in named else set())

    def mgpu_of(self, gpu_type: str) -> int:
        """Return the mGPU that count towards a limit on one type: all GPUs that may be of this type."""
        may_be = any(gpu_type in PARTITIONS[name].gpu_types for name in self.partitions)
        named = self.given_type or self.named_type
        asked = self.asked_mgpu if (may_be if named is None else named == gpu_type) else 0
        # GPUs of whole nodes that the job does not request may be of any type.
        of_nodes = self.whole_mgpu - (self.asked_mgpu - asked) if may_be else 0
        return max(asked, of_nodes)

    @property
    def asked_cpus(self) -> int:
        """Return the CPUs that tasks, nodes and `min_cpus` require."""
        each = 1 if self.cpus_per_task is None else self.cpus_per_task
        return max(self.tasks * each, self.counted_nodes * each, self.min_cpus or 0)

    @property
    def cpus(self) -> int:
        by_gpu = math.ceil(self.mgpu * (self.cpus_per_gpu or 0) / 1000)
        least = min(PARTITIONS[name].cpus for name in self.partitions)
        return max(self.asked_cpus, by_gpu, self.counted_nodes * least if self.exclusive else 0)

    @property
    def mib(self) -> float:
        if self.mib_per_node == 0:
            return self.counted_nodes * min(PARTITIONS[name].mib for name in self.partitions)
        if self.mib_per_node is not None:
            return self.counted_nodes * self.mib_per_node
        if self.mib_per_cpu is not None:
            return self.cpus * self.mib_per_cpu
        if self.mib_per_gpu is not None:
            return self.mgpu * self.mib_per_gpu / 1000
        if self.asked_mgpu > 0 and not self.only_parts:  # GPUs that only come with whole nodes do not count
            return self.mgpu * DEFAULT_MIB_PER_GPU / 1000
        return self.cpus * DEFAULT_MIB_PER_CPU

    @property
    def jobs(self) -> int:
        return 1 if self.array_tasks is None else self.array_tasks

    @property
    def walltime_s(self) -> float:
        if self.minutes is None:
            return NORMAL_LIMIT_S
        return math.inf if self.minutes == 0 else self.minutes * 60

    def billing(self, flag: str | None = None) -> int:
        """Return the most billing units in any partition, given MAX_TRES or MAX_TRES_GRES."""
        return max(self._billing_in(PARTITIONS[name], flag) for name in self.partitions)

    def _billing_in(self, partition: PartitionModel, flag: str | None) -> int:
        if not partition.weights:
            return self.cpus
        parts = self.only_parts and self.whole_mgpu <= self.asked_mgpu
        gpus = Fraction(0 if parts else self.mgpu, 1000)
        types = {self.named_type} if self.named_type else partition.gpu_types
        amounts = {
            "cpu": Fraction(self.cpus),
            "mem": Fraction(self.mib) / 1024,
            "node": Fraction(self.counted_nodes),
            "gres/gpu": gpus,
            "gres/shard": Fraction((self.shards_per_node or 0) * self.counted_nodes if parts else 0),
            "gres/mps": Fraction((self.mps_per_node or 0) * self.counted_nodes if parts else 0),
            **{f"gres/gpu:{kind}": gpus for kind in types},
        }
        billed = {name: n * partition.weights.get(name, 0) for name, n in amounts.items()}
        of_gpus = [value for name, value in billed.items() if name.startswith("gres/")]
        others = [value for name, value in billed.items() if not name.startswith("gres/")]
        if flag == "MAX_TRES":
            return math.floor(max(*of_gpus, *others))
        return math.floor(sum(of_gpus) + (max(others) if flag == "MAX_TRES_GRES" else sum(others)))

    def hours(self, limit: str, *, most_s: float = math.inf) -> float:
        """Return the hours that `limit`, such as gpu_hours:week:a100, counts for all array tasks."""
        base, _, part = limit.partition(":")
        gpu_type = part.partition(":")[2]
        mgpu = self.mgpu_of(gpu_type) if gpu_type else self.mgpu
        used = {"gpu_hours": mgpu / 1000, "cpu_hours": self.cpus, "billing_hours": self.billing()}[base]
        return used * self.jobs * min(self.walltime_s, most_s) / 3600 if used else 0.0

    def committed_hours(self, limit: str) -> float:
        """Return the hours that count until the job ends; without a time limit, those of a year."""
        return self.hours(limit, most_s=365 * 86400)

    def measure(self, name: str) -> float:
        """Return an amount of one array task: gpus, gpus:TYPE, cpus, memory or jobs."""
        base, _, gpu_type = name.partition(":")
        if base == "gpus":
            return self.mgpu_of(gpu_type) if gpu_type else self.mgpu
        return {"cpus": self.cpus, "memory": self.mib, "jobs": 1}[base]


# A number, allowed names, or steps: pairs of an amount in mGPU and the number that applies from there on.
Limit = float | frozenset[str] | tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class When:
    """Days (0 is Monday) and minutes since midnight, in the site's time zone.

    `to_min` is at most `from_min` if the hours end on the next day. `run` is true for `at: run`.
    """

    days: frozenset[int]
    from_min: int
    to_min: int
    run: bool = False

    def holds(self, moment: dt.datetime) -> bool:
        minute = moment.hour * 60 + moment.minute
        if self.from_min < self.to_min:
            return moment.weekday() in self.days and self.from_min <= minute < self.to_min
        if minute < self.to_min:
            moment -= dt.timedelta(days=1)  # the previous day in local time
        return moment.weekday() in self.days and not self.to_min <= minute < self.from_min


@dataclass(frozen=True)
class ExceptionModel:
    """Limits of one user that replace those of a rule, from the first through the last day."""

    limits: Mapping[str, Limit]
    from_day: dt.date | None = None
    until: dt.date | None = None


@dataclass(frozen=True)
class GroupModel:
    """Conditions of a group; names of accounts, QOS and partitions may have wildcards."""

    users: frozenset[int] | None = None
    unix_group: str | None = None
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    all_of: tuple[GroupModel, ...] = ()
    none_of: tuple[GroupModel, ...] = ()


@dataclass(frozen=True)
class TierModel:
    """Limits of the jobs of a group, from its first to its last day; the group None contains all jobs."""

    group: GroupModel | None
    limits: Mapping[str, Limit]
    options: Mapping[str, str] = field(default_factory=dict)
    from_day: dt.date | None = None
    until: dt.date | None = None


@dataclass(frozen=True)
class JobsModel:
    """Conditions on single jobs; GPUs in mgpu."""

    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    gpu_types: frozenset[str] | None = None
    array: bool | None = None
    names: frozenset[str] | None = None
    """Names, which may have wildcards."""

    def holds(self, job: Request, *, at_any_size: bool = False, has_started: bool = False) -> bool:
        """Return whether a job may meet all conditions, or a running job meets them.

        With `at_any_size`, ignore the minimums.
        """
        kind = job.given_type or job.named_type if has_started else None
        types = {kind} if kind else job.possible_types
        most, least = (
            {"gpus": one.mgpu, "nodes": one.counted_nodes, "walltime": one.walltime_s}
            for one in (job, job if has_started else job.on_fewest_nodes)
        )
        return (
            (self.array is None or self.array == (job.array_tasks is not None))
            and (self.names is None or any(fnmatchcase(job.name, name) for name in self.names))
            and (self.gpu_types is None or (job.mgpu > 0 and not self.gpu_types.isdisjoint(types)))
            and (at_any_size or all(most[key] >= value for key, value in self.at_least.items()))
            and all(least[key] <= value for key, value in self.at_most.items())
        )


@dataclass(frozen=True)
class ChangesModel:
    """Options that a rule sets, always or by default."""

    always: Mapping[str, str | int] = field(default_factory=dict)
    by_default: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleModel:
    """One rule with the conditions of its group, or one part of a rule with tiers."""

    id: str
    per: str
    mode: str = "enforce"
    on_error: str = "allow"
    users: frozenset[int] | None = None
    unix_group: str | None = None
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    all_of: tuple[GroupModel, ...] = ()
    none_of: tuple[GroupModel, ...] = ()
    from_day: dt.date | None = None
    """The group's first day."""
    until: dt.date | None = None
    """The group's last day."""
    kind: str | None = None
    jobs: JobsModel | None = None
    when: When | None = None
    limits: Mapping[str, Limit] = field(default_factory=dict)
    hard: bool = False
    """Used hours include those that pending and running jobs may still use."""
    carry_over: bool = False
    """Limits by period include the unused part of the previous calendar period's limit."""
    changes: ChangesModel | None = None
    """None unless the rule changes jobs; such a rule limits only the walltime."""
    over_limit: Mapping[str, str] = field(default_factory=dict)
    """Options of jobs over the limits: such jobs are neither refused nor counted."""
    moved_on: tuple[Mapping[str, str], ...] = ()
    """Options that other rules may then give to these jobs, which are not counted either."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that jobs must name (required) or must not name (forbidden)."""
    exceptions: Mapping[int, ExceptionModel] = field(default_factory=dict)
    tiers: tuple[TierModel, ...] = ()
    """Only the first tier that matches a job applies."""
    are_exceptions: bool = False
    """The tiers are exceptions for groups, except the last, which has the rule's own limits."""
    tier: int | None = None
    """The number of the tier of `whole` that this part represents."""
    whole: RuleModel | None = None

    def group_of(self, tier: int) -> str | None:
        """Return the name of the group of a tier."""
        return None if self.tiers[tier].group is None else f"{self.id}-{tier}"

    @property
    def parts(self) -> list[RuleModel]:
        """Return the parts of a rule with tiers as rules of their own."""
        if not self.tiers:
            return [self]
        found = []
        for number, one in enumerate(self.tiers):
            group = self.group_of(number)
            limits = {**self.limits, **one.limits} if self.are_exceptions else one.limits
            options = self.options if self.are_exceptions else one.options
            name = self.id if group is None else f"{self.id} ({group})"
            part = dataclasses.replace(self, id=name, limits=limits, options=options, tier=number, whole=self)
            if limits or options:
                found.append(part)
        return found


@dataclass(frozen=True)
class BundleModel:
    """The CPUs and memory for a number of GPUs."""

    name: str
    mgpu: int
    cpus: int | None = None
    mib: int | None = None
    partitions: frozenset[str] | None = None
    gpu_types: frozenset[str] | None = None
    mode: str = "advise"


@dataclass(frozen=True)
class OwnerModel:
    """An account that lends its idle GPUs in the QOS sg-loans, and runs its own jobs in another."""

    account: str
    mgpu: int
    qos: str


@dataclass(frozen=True)
class PolicyModel:
    """A whole policy; days and hours are those of `zone`."""

    rules: tuple[RuleModel, ...] = ()
    bundles: tuple[BundleModel, ...] = ()
    zone: str = "UTC"
    owners: tuple[OwnerModel, ...] = ()
    unowned_mgpu: int = 0

    def local(self, second: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(second, ZoneInfo(self.zone))

    def moments(self, begin_s: int, length_s: float) -> Iterator[dt.datetime]:
        """Yield the beginning of a run and each further minute, for at most 17 days."""
        yield self.local(begin_s)
        first = begin_s - begin_s % 60 + 60
        for second in range(first, int(begin_s + min(length_s, 17 * 86400)), 60):
            yield self.local(second)
