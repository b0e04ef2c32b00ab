"""Predict which jobs Slurm itself refuses, and which jobs Slurm accepts but never starts.

For example, Slurm refuses unknown names and requests for more than a node has, regardless of the policy.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.explain import named_reservation as namedreservation
from slurm_gpu.policy.explain.constraint import names_in, nodes_with
from slurm_gpu.policy.explain.gpu_options import gpu_count
from slurm_gpu.policy.explain.node_needs import unmet_needs
from slurm_gpu.policy.explain.partition_limits import Obstacles, PartitionRequest, find_obstacles
from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.policy.explain.slurmdbd_limits import exceeded_limits, ordered_qos
from slurm_gpu.policy.explain.submitter import Submitter
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings
from slurm_gpu.slurm.gpu_count import known_gpu_types
from slurm_gpu.slurm.submission import Partition, UserAssociations
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import counted, few

# Maximum number of names in a message.
_MOST_NAMED = 12
_GRES = re.compile(r"gres/(?P<name>\w+)(?::(?P<kind>[A-Za-z_][\w.-]*))?(?:[:=](?P<count>\d{1,9}))?")
_LICENSE = re.compile(r"(?P<name>[^:*=]+)(?:[:*=](?P<count>\d{1,9}))?")
# Values of AccountingStorageEnforce with which Slurm enforces limits.
_ENFORCING_LIMITS = ("limits", "safe", "all")
# From this version on, --qos accepts a list of names: the job runs in the first QOS that allows it.
_SEVERAL_QOS = (24, 11)


@dataclass(frozen=True, slots=True)
class RunningSlurm:
    """The settings and data of a running Slurm that determine whether Slurm accepts a job."""

    settings: SlurmSettings
    nodes: Sequence[SlurmNode]
    partitions: Sequence[Partition]
    user: str
    # Accounts and QOS of `user`.
    places: UserAssociations
    # Groups of `user`, and the account and QOS of the job.
    submitter: Submitter = field(default_factory=Submitter)
    # None if the reservations are unknown, or if the job names no reservation.
    reservations: namedreservation.KnownReservations | None = None
    # Total number of each licence; None if the totals are unknown, or if the job names no licence.
    licenses: Mapping[str, int] | None = None

    @property
    def enforced(self) -> set[str]:
        """Return the values in AccountingStorageEnforce; limits and qos imply associations."""
        return set(self.settings.raw.get("AccountingStorageEnforce", "").split(","))

    @property
    def version(self) -> tuple[int, ...]:
        """Return the version of Slurm, such as (24, 11)."""
        return tuple(int(number) for number in re.findall(r"\d+", self.settings.version)[:2])


def refusals_of_slurm(
    request: SbatchRequest, description: Mapping[str, object], cluster: RunningSlurm
) -> list[str]:
    """Return the reasons why Slurm would refuse the job, and the remedies; empty if no reason is found.

    `description` is the job description of the request. Not all checks of Slurm are covered.
    """
    found = [*request.mistakes(), *_names(request, cluster)]
    requested = _requested_partitions(request, cluster)
    nodes = [node for node in cluster.nodes if not set(requested.split(",")).isdisjoint(node.partitions)]
    reserved, known = request.options.get("reservation"), cluster.reservations
    if reserved and known is not None:
        if not cluster.submitter.is_root:
            found += namedreservation.may_not(reserved, cluster.user, cluster.submitter.account, known)
        in_it = namedreservation.nodes_in(reserved, nodes, known)
        if in_it is not None:
            nodes, requested = in_it, f"reservation {reserved}"
            found += _outside(request, nodes, requested)
    found += _find_obstacles(request, description, cluster).refused
    if nodes:
        found += _gres(request, nodes, cluster)
    if nodes and not found:
        found += [
            *_amounts(request, description, nodes, requested, cluster),
            *_features(request, description, nodes, requested),
        ]
    return found


def waits_of_slurm(
    request: SbatchRequest, description: Mapping[str, object], cluster: RunningSlurm
) -> tuple[str, ...]:
    """Return the reasons why Slurm would accept the job but not start it until a setting is changed."""
    return _find_obstacles(request, description, cluster).waits


def _requested_partitions(request: SbatchRequest, cluster: RunningSlurm) -> str:
    default = ",".join(part.name for part in cluster.partitions if part.is_default)
    return request.options.get("partition") or default


def _find_obstacles(
    request: SbatchRequest, description: Mapping[str, object], cluster: RunningSlurm
) -> Obstacles:
    requested = _requested_partitions(request, cluster).split(",")
    partitions = [part for part in cluster.partitions if part.name in requested]
    enforced = cluster.settings.raw.get("EnforcePartLimits", "NO").upper()
    # YES is an earlier spelling of ALL.
    enforced = {"YES": "ALL"}.get(enforced, enforced)
    partition_request = _partition_request(request, description)
    found = find_obstacles(partitions, partition_request, cluster.submitter, enforced, cluster.version)
    over = _exceeded_limits(description, partitions, cluster)
    return Obstacles(found.refused + over.refused, found.waits + over.waits)


def _exceeded_limits(
    description: Mapping[str, object], partitions: Sequence[Partition], cluster: RunningSlurm
) -> Obstacles:
    """Return the limits in slurmdbd that the job exceeds in all its partitions."""
    known, of_job = cluster.submitter.known_qos, cluster.submitter.known_qos.get(cluster.submitter.qos or "")
    if of_job is None or cluster.enforced.isdisjoint(_ENFORCING_LIMITS):
        return Obstacles()
    by_partition = [ordered_qos(known.get(part.qos or ""), of_job) for part in partitions]
    found = [[*exceeded_limits(description, qos, cluster.submitter.associations)] for qos in by_partition]
    if not all(found):
        return Obstacles()
    limits = [limit for of_one in found for limit in of_one]
    reasons = tuple(dict.fromkeys(limit.text for limit in limits))
    is_refused = any(limit.refuses for limit in limits)
    return Obstacles(refused=reasons) if is_refused else Obstacles(waits=reasons)


def _partition_request(request: SbatchRequest, description: Mapping[str, object]) -> PartitionRequest:
    def option_value(option: str, field: str) -> int | None:
        value = description.get(field)
        return value if option in request.options and isinstance(value, int) else None

    return PartitionRequest(
        time_limit=option_value("time", "time_limit"),
        least_nodes=option_value("nodes", "min_nodes"),
        most_nodes=option_value("nodes", "max_nodes"),
        cpus_per_task=option_value("cpus-per-task", "cpus_per_task"),
        memory_per_node_mib=option_value("mem", "min_mem_per_node"),
        in_reservation="reservation" in request.options,
    )


def _features(
    request: SbatchRequest, description: Mapping[str, object], nodes: Sequence[SlurmNode], requested: str
) -> Iterator[str]:
    """Yield a message if --constraint matches fewer nodes than --nodes requests."""
    constraint = request.options.get("constraint", "")
    having = nodes_with(constraint, nodes)
    least = description.get("min_nodes")
    needed = least if isinstance(least, int) and "nodes" in request.options else 1
    if having is not None and having < needed:
        these = "no node" if having == 0 else f"only {counted(having, 'node')}"
        verb = "satisfy" if having > 1 else "satisfies"
        yield f"--constraint={constraint}: {these} of {requested} {verb} it"


def _names(request: SbatchRequest, cluster: RunningSlurm) -> Iterator[str]:
    """Yield a message for each partition, account, QOS, feature and node that is unknown or not allowed."""
    get = request.options.get
    there = [part.name for part in cluster.partitions]
    partition = get("partition")
    for name in partition.split(",") if partition else ():
        if there and name not in there:
            yield f"--partition: {name!r} is not a partition of this cluster; {_available(name, there)}"
    if there and not partition and not any(part.is_default for part in cluster.partitions):
        yield f"--partition is missing, and there is no default partition; available: {_listed(there)}"
    for option, allowed, enforcing in (
        ("account", cluster.places.accounts, {"associations", "limits", "safe", "qos", "wckeys", "all"}),
        ("qos", cluster.places.qos, {"qos", "all"}),
    ):
        value = get(option)
        several = option == "qos" and cluster.version >= _SEVERAL_QOS
        for name in value.split(",") if value and several else filter(None, (value,)):
            if allowed and name.lower() not in allowed and cluster.enforced & enforcing:
                yield f"--{option}: {cluster.user} may not use {name!r}; {_available(name, sorted(allowed))}"
    features = list(dict.fromkeys(feature for node in cluster.nodes for feature in node.features))
    for name in names_in(get("constraint", "")):
        if cluster.nodes and name not in features:
            yield f"--constraint: {name!r} is not a feature of any node; {_available(name, sorted(features))}"
    names = [node.name for node in cluster.nodes]
    for name in _nodelist(request):
        if names and name not in names:
            yield f"--nodelist: {name!r} is not a node of this cluster; {_available(name, names)}"
    yield from _licenses(request, cluster)


def _licenses(request: SbatchRequest, cluster: RunningSlurm) -> Iterator[str]:
    """Yield a message for each licence that the cluster lacks or does not have in sufficient number."""
    known, value = cluster.licenses, request.options.get("licenses", "")
    # Alternatives (a|b) are not checked.
    if known is None or "|" in value:
        return
    requested = Counter[str]()
    for match in map(_LICENSE.fullmatch, re.split("[,;]", value)):
        if match is not None:
            requested[match["name"]] += int(match["count"] or 1)
    names = {*known, *(name.partition("@")[0] for name in known)}
    accepts_more = "allow_zero_lic" in cluster.settings.raw.get("SchedulerParameters", "").split(",")
    for name, count in requested.items():
        if name not in names:
            yield f"--licenses: {name!r} is not a licence of this cluster; {_available(name, sorted(known))}"
        elif not accepts_more and count > known.get(name, count):
            yield f"--licenses: {count} of {name} requested, but the cluster has {known[name]}"


def _gres(request: SbatchRequest, nodes: Sequence[SlurmNode], cluster: RunningSlurm) -> Iterator[str]:
    """Yield a message for each GRES that the cluster lacks and each GPU type that the nodes lack."""
    gres_types = cluster.settings.raw.get("GresTypes")
    kinds = None if gres_types is None else [] if gres_types == "(null)" else gres_types.split(",")
    types = sorted({kind for node in nodes for kind in node.gpus if kind})
    lower, has_gpus = known_gpu_types(nodes), any(node.n_gpus for node in nodes)
    items = [(option, item) for option, text in request.gres().items() for item in text.split(",")]
    for option, item in items:
        match = _GRES.fullmatch(item)
        if match is None:
            continue
        name, kind = match["name"], match["kind"]
        if kinds is not None and name not in kinds:
            yield f"--{option}: {name!r} is not in GresTypes; available: {_listed(kinds)}"
        elif name == "gpu" and has_gpus and kind and kind.lower() not in lower:
            available = _listed(types) if types else "GPUs without a type"
            yield f"--{option}: no eligible node has GPUs of type {kind!r}; available: {available}"


def _outside(request: SbatchRequest, nodes: Sequence[SlurmNode], requested: str) -> Iterator[str]:
    """Yield a message for each node of --nodelist that is not among `nodes`."""
    names = {node.name for node in nodes}
    for name in _nodelist(request):
        if name not in names:
            yield f"--nodelist: {name!r} is not in {requested}; {_available(name, sorted(names))}"


def _nodelist(request: SbatchRequest) -> list[str]:
    """Return the nodes of --nodelist; empty if they are in a file or cannot be parsed."""
    nodelist = request.options.get("nodelist")
    try:
        return expand(nodelist) if nodelist and "/" not in nodelist else []
    except (ValueError, SlurmError):
        return []


def _amounts(
    request: SbatchRequest,
    description: Mapping[str, object],
    nodes: Sequence[SlurmNode],
    requested: str,
    cluster: RunningSlurm,
) -> Iterator[str]:
    """Yield a message for each requested amount that the nodes cannot provide."""
    in_all, there = gpu_count(description, "tres_per_job"), sum(node.n_gpus for node in nodes)
    if in_all > there:
        yield f"--gpus: {in_all} requested, but {requested} has {there}"
    else:
        allocates_memory = "MEMORY" in cluster.settings.raw.get("SelectTypeParameters", "").upper()
        yield from unmet_needs(request, description, nodes, requested, allocates_memory=allocates_memory)
    least = description.get("min_nodes")
    if isinstance(least, int) and "nodes" in request.options and least > len(nodes):
        yield f"--nodes={request.options['nodes']}: {requested} has {counted(len(nodes), 'node')}"


def _available(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return (f"did you mean {close[0]}? " if close else "") + f"available: {_listed(known)}"


def _listed(names: Collection[str]) -> str:
    return few(names, _MOST_NAMED) or "none"
