"""Build job_submit.lua from the Lua modules and the policy as data (docs/contracts.md, section 4)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu import __version__
from slurm_gpu.errors import OutsideError
from slurm_gpu.files.source_root import SOURCE_ROOT
from slurm_gpu.policy.language.account_trees import with_listed
from slurm_gpu.policy.language.hour_sums import COMMITTED, parts_of, sums_of
from slurm_gpu.policy.language.hours_text import jobs_at
from slurm_gpu.policy.language.limits import flat_amounts
from slurm_gpu.policy.language.local_time import end_of_day, start_of_day, utc_offsets
from slurm_gpu.policy.language.lua_literals import Plain, to_lua
from slurm_gpu.policy.language.model import Bundle, Dated, Hours, JobTime, Per, Policy, PolicyRule
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.colocation import compile_colocation
from slurm_gpu.policy.lua.idle import compile_cancel_idle
from slurm_gpu.policy.lua.lending import compile_lending, lending_groups
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.policy.lua.urgent import compile_urgent
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.gpu_count import most_per_gpu
from slurm_gpu.text.units import counted, format_gpus, format_memory_mib

SNAPSHOT = "snapshot.txt"
DECISIONS_LOG = "decisions.log"
# Size at which decisions.log is rotated, because /run is in memory.
DECISIONS_LOG_BYTES = 64 * 2**20

# The start of every bundle; a site's own job_submit.lua does not have it.
MARK = "-- slurm-gpu "
# The start of the stub that packaging/hooks/place-lua installs on removal; the next apply replaces the stub.
STUB_MARK = f"{MARK}was removed: "

# The module that defines the functions for slurmctld; the last one, because the script returns its result.
_ENTRY = "entry"
_REQUIRES = re.compile(r"-- requires: (.+)")


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources that jobs can use on a node; `mib` is None if Slurm does not allocate memory."""

    gpus: int
    cpus: int
    cores: int | None
    sockets: int | None
    mib: int | None


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Facts about the cluster that the Lua code requires in addition to the policy."""

    slurm_user_uid: int = 0
    # Total number of GPUs in the cluster.
    n_gpus: int = 0
    # Whether the cluster has QOS, which lending requires; slurmdbd stores them.
    has_qos: bool = True
    # Whether preempted jobs without --requeue or --no-requeue are requeued (JobRequeue).
    requeues: bool = True
    # Shards per GPU; None if no node has shards. If nodes differ, the largest number, which gives a lower
    # bound on a job's size.
    shards_per_gpu: int | None = None
    # MPS per GPU; None and differing nodes are treated as for shards.
    mps_per_gpu: int | None = None
    # Smallest number of GPUs on any node, by partition.
    partition_gpus: Mapping[str, int] = field(default_factory=dict)
    # Smallest number of CPUs on any node, by partition.
    partition_cpus: Mapping[str, int] = field(default_factory=dict)
    # Smallest memory of any node, by partition.
    partition_mib: Mapping[str, int] = field(default_factory=dict)
    # Number of nodes with each combination of resources, by partition.
    partition_nodes: Mapping[str, Mapping[NodeResources, int]] = field(default_factory=dict)
    # Default number of tasks per core (CR_ONE_TASK_PER_CORE); None if only CPUs limit the tasks.
    tasks_per_core: int | None = None
    # GPU types of the nodes in lower case, by partition.
    partition_gpu_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Memory of jobs that request no memory: `per_gpu`, `per_cpu`, `per_node`; `whole_node` if such jobs get
    # all memory of their nodes.
    default_mib: Mapping[str, int] = field(default_factory=dict)
    # Whether the shards of one job may come from several GPUs (MULTIPLE_SHARING_GRES_PJ).
    shards_span_gpus: bool = False
    # The calculation of billing units: MAX_TRES or MAX_TRES_GRES from PriorityFlags; None if neither is set.
    billing: str | None = None
    # The file in which slurmctld saves its jobs.
    job_state: Path | None = None
    run_directory: Path = RUN_DIRECTORY
    # The time zone of days such as `until:`, and of the hours in `when:`.
    timezone: str = "UTC"
    # The first year for which clock changes are listed.
    year: int = field(default_factory=lambda: dt.datetime.now(tz=dt.UTC).year)

    @classmethod
    def of(
        cls, settings: SlurmSettings, nodes: Iterable[SlurmNode], run_directory: Path, timezone: str
    ) -> SiteFacts:
        """Return the facts from the settings and nodes of a running Slurm."""
        nodes = list(nodes)
        types: dict[str, frozenset[str]] = {}
        for node in nodes:
            named = frozenset(kind.lower() for kind in node.gpus if kind)
            types |= {name: types.get(name, frozenset()) | named for name in node.partitions}
        per_gpu = most_per_gpu(nodes)
        parameters = settings.raw.get("SelectTypeParameters", "").upper()
        saved = settings.raw.get("StateSaveLocation")
        return cls(
            slurm_user_uid=settings.slurm_user_uid,
            n_gpus=sum(node.n_gpus for node in nodes),
            has_qos=has_slurmdbd(settings),
            requeues=settings.raw.get("JobRequeue", "1") != "0",
            shards_per_gpu=per_gpu.shard,
            mps_per_gpu=per_gpu.mps,
            partition_gpus=_least(nodes, lambda node: node.n_gpus),
            partition_cpus=_least(nodes, lambda node: node.cpus),
            partition_mib=_least(nodes, lambda node: node.memory_mib),
            partition_nodes=_kinds(nodes, has_memory="MEMORY" in parameters),
            tasks_per_core=1 if "CR_ONE_TASK_PER_CORE" in parameters else None,
            partition_gpu_types=types,
            default_mib=_default_memory(settings.raw),
            shards_span_gpus="MULTIPLE_SHARING_GRES_PJ" in parameters,
            billing=_billing(settings.raw.get("PriorityFlags", "")),
            job_state=Path(saved) / "job_state" if saved else None,
            run_directory=run_directory,
            timezone=timezone,
        )


def _committed_sums(policy: Policy) -> list[Plain]:
    """Return the keys of the sums of hours that pending and running jobs may still use, which rules count.

    A snapshot that lacks such a sum does not differ from one in which the sum is 0.
    """
    limits = (flat_amounts(rule) for rule in policy.rules if rule.hard)
    keys = {key for one in limits for key in sums_of(one, hard=True)}
    return [key for key in sorted(keys) if parts_of(key)[1] == COMMITTED]


def compile_policy(policy: Policy, names: ResolvedNames, facts: SiteFacts) -> dict[str, Plain]:
    """Return the policy as the plain table that the Lua modules read, with digests of the chained scripts."""
    policy = with_listed(policy, names)
    index = {name: position for position, name in enumerate(policy.groups, 1)}
    by_account = {rule.group for rule in policy.rules if rule.per is Per.ACCOUNT}
    with_hard_limits = {rule.group for rule in policy.rules if rule.hard}
    zone = ZoneInfo(facts.timezone)
    groups: list[Plain] = [
        {
            "name": group.name,
            **_seconds(group, zone),
            "uids": None if group.users is None else _number_set(names.uids_of(group.users)),
            "member_uids": None
            if group.unix_groups is None
            else _number_set(uid for unix_group in group.unix_groups for uid in names.members[unix_group]),
            # Slurm stores names of accounts and QOS in lower case.
            "accounts": _name_set(group.accounts, lower=True),
            "qos": _name_set(group.qos, lower=True),
            "partitions": _name_set(group.partitions),
            "all_of": _indexes(group.all_of, index),
            "none_of": _indexes(group.none_of, index),
            "label": group.label,
            # slurm-gpuctld sums the jobs of each account in such a group.
            "by_account": group.name in by_account or None,
            # It also sums the resource-hours that the jobs of such a group may still use.
            "has_hard_limit": group.name in with_hard_limits or None,
        }
        for group in policy.groups.values()
    ]

    def exceptions(rule: PolicyRule) -> dict[int, Plain] | None:
        found: dict[int, Plain] = {}
        for exception in policy.exceptions:
            if exception.user is not None and exception.rule == rule.whole.id:
                # A tier may set only some limits of its rule.
                of_rule = flat_amounts(rule)
                own = {key: value for key, value in flat_amounts(exception).items() if key in of_rule}
                days = _seconds(exception, zone)
                found[names.uids[exception.user]] = {**days, "limits": own, "why": exception.why}
        return found or None

    rules: list[Plain] = [
        {
            "id": rule.id,
            "group": index[rule.group],
            "per": str(rule.per),
            "why": rule.why,
            "mode": str(rule.mode),
            "on_error": str(rule.on_error),
            "hard": rule.hard or None,
            "carry_over": rule.carry_over or None,
            "jobs": None if rule.jobs is None else rule.jobs.table(),
            "kind": None if rule.kind is None else str(rule.kind),
            "when": None if rule.when is None else _when(rule.when),
            "limits": flat_amounts(rule),
            "changes": _changes(rule),
            "over_limit": None if rule.over_limit is None else rule.over_limit.table(),
            "options": {option: str(need) for option, need in rule.options.items()} or None,
            "exceptions": exceptions(rule),
        }
        for rule in policy.rules
    ]
    lending = compile_lending(policy, facts.n_gpus, requeues=facts.requeues) if facts.has_qos else None
    if lending is not None:
        groups += lending_groups(policy)
    partitions: dict[str, Plain] = {
        "partition_gpus": dict(sorted(facts.partition_gpus.items())),
        "partition_cpus": dict(sorted(facts.partition_cpus.items())),
        "partition_mib": dict(sorted(facts.partition_mib.items())),
        "partition_gpu_types": {
            name: _name_set(types) for name, types in sorted(facts.partition_gpu_types.items())
        },
    }
    return {
        "contact": policy.contact,
        "groups": groups,
        "groups_id": _digest(
            [
                groups,
                _committed_sums(policy),
                facts.shards_per_gpu,
                facts.mps_per_gpu,
                dict(facts.default_mib),
                *partitions.values(),
            ]
        ),
        "rules": rules,
        "bundles": [_bundle(bundle) for bundle in policy.bundles.values()],
        "lending": lending,
        "urgent": compile_urgent(policy, index) if facts.has_qos else None,
        "colocation": compile_colocation(policy, index, requeues=facts.requeues),
        "cancel_idle": compile_cancel_idle(policy, index),
        "utc_offsets": [
            {"from_s": second, "offset_s": east} for second, east in utc_offsets(zone, facts.year)
        ],
        "chain_before": _path(policy.chain.before),
        "chain_after": _path(policy.chain.after),
        # Chained scripts are loaded only with the bundle. If a chained script changes, its digest changes the
        # bundle, so the next apply installs the bundle again.
        "chained": [_content(path) for path in (policy.chain.before, policy.chain.after) if path is not None],
        "snapshot": str(facts.run_directory / SNAPSHOT),
        "slurm_user_uid": facts.slurm_user_uid,
        "shards_per_gpu": facts.shards_per_gpu,
        "mps_per_gpu": facts.mps_per_gpu,
        **partitions,
        "partition_nodes": {
            name: [
                # If all nodes are of one kind, an additional node of that kind does not change the bundle.
                {"n": kinds[kind] if len(kinds) > 1 else None, **dataclasses.asdict(kind)}
                for kind in sorted(kinds, key=str)
            ]
            for name, kinds in sorted(facts.partition_nodes.items())
        },
        "tasks_per_core": facts.tasks_per_core,
        "default_mib": dict(facts.default_mib),
        "shards_span_gpus": facts.shards_span_gpus,
        "billing": facts.billing,
        "job_state": None if facts.job_state is None else str(facts.job_state),
        "decisions_log": str(facts.run_directory / DECISIONS_LOG),
        "decisions_log_bytes": DECISIONS_LOG_BYTES,
    }


def build_bundle(compiled: Mapping[str, Plain], directory: Path | None = None) -> str:
    """Return the whole script; equal policies produce equal scripts."""
    parts = [
        f"{MARK}{__version__}: generated from policy.yaml by `slurm-gpu policy apply`; do not edit.",
        f"local policy = {to_lua(compiled)}",
        "local lib = {}",
    ]
    for name, text in _modules(directory if directory is not None else lua_directory()):
        opening = "return (function(...)" if name == _ENTRY else f"lib.{name} = (function(...)"
        parts.append(f"{opening}\n{text.rstrip()}\nend)(policy, lib)")
    return "\n\n".join(parts) + "\n"


def required_modules(text: str) -> list[str]:
    """Return the modules that a module requires, from its first line (`-- requires: NAME, NAME`)."""
    match = _REQUIRES.match(text)
    return [] if match is None else match[1].split(", ")


def lua_directory() -> Path:
    """Return the directory of the Lua modules: in the checkout, under sys.prefix, or in /usr/share.

    Raise OutsideError if the directory is not found.
    """
    candidates = (
        SOURCE_ROOT / "plugins" / "job_submit",
        Path(sys.prefix) / "share" / "slurm-gpu" / "job_submit",
        Path("/usr/share/slurm-gpu/job_submit"),
    )
    for candidate in candidates:
        if (candidate / f"{_ENTRY}.lua").is_file():
            return candidate
    raise OutsideError(f"the Lua modules of job_submit were not found in {', '.join(map(str, candidates))}")


def _least(nodes: Iterable[SlurmNode], amount: Callable[[SlurmNode], int]) -> dict[str, int]:
    """Return, by partition, the smallest amount among its nodes."""
    least: dict[str, int] = {}
    for node in nodes:
        for partition in node.partitions:
            least[partition] = min(least.get(partition, amount(node)), amount(node))
    return least


def _kinds(nodes: Iterable[SlurmNode], *, has_memory: bool) -> dict[str, Counter[NodeResources]]:
    """Return, by partition, the number of nodes with each combination of resources."""
    found: dict[str, Counter[NodeResources]] = {}
    for node in nodes:
        mib = node.memory_mib if has_memory else None
        kind = NodeResources(node.n_gpus, node.cpus_effective or node.cpus, node.cores, node.sockets, mib)
        for partition in node.partitions:
            found.setdefault(partition, Counter())[kind] += 1
    return found


def _default_memory(raw: Mapping[str, str]) -> dict[str, int]:
    """Return the memory of jobs that request no memory, according to `scontrol show config`."""
    found = {}
    for key, text in (
        ("per_gpu", raw.get("JobDefaults", "")),
        ("per_cpu", f"DefMemPerCPU={raw.get('DefMemPerCPU', '')}"),
        ("per_node", f"DefMemPerNode={raw.get('DefMemPerNode', '')}"),
    ):
        if match := re.search(r"DefMemPer(?:GPU|CPU|Node)=(\d+)", text):
            found[key] = int(match[1])
    if "MEMORY" in raw.get("SelectTypeParameters", "").upper() and not found.keys() & {"per_cpu", "per_node"}:
        found["whole_node"] = 1
    return found


def _billing(flags: str) -> str | None:
    names = {flag.strip().upper() for flag in flags.split(",")}
    return next((name for name in ("MAX_TRES", "MAX_TRES_GRES") if name in names), None)


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return the name and text of each module; a module comes after the modules that it requires."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(directory.glob("*.lua"))}
    requires = {name: required_modules(text) for name, text in texts.items()}
    for name, required in requires.items():
        if unknown := next((one for one in required if one not in texts), None):
            raise OutsideError(f"{directory / name}.lua requires {unknown}, but there is no {unknown}.lua")
    requires[_ENTRY] = [name for name in texts if name != _ENTRY]
    try:
        return [(name, texts[name]) for name in TopologicalSorter(requires).static_order()]
    except CycleError as error:
        raise OutsideError(f"{directory}: modules require each other: {' -> '.join(error.args[1])}") from None


def _digest(value: Plain) -> str:
    """Return a digest of the data used to count jobs; snapshots with another digest are not used."""
    return hashlib.sha256(to_lua(value).encode()).hexdigest()[:16]


def _changes(rule: PolicyRule) -> dict[str, Plain] | None:
    """Return the options that a rule sets, except its `walltime`, which is among the rule's limits."""
    if not rule.changes_jobs or rule.over_limit is not None:
        return None
    return {
        "set": {} if rule.set is None else rule.set.table(),
        "defaults": {} if rule.defaults is None else rule.defaults.table(),
    }


def _when(when: Hours) -> dict[str, Plain]:
    days: list[Plain] = [day in when.days for day in range(7)]
    return {
        "days": days,
        "from_min": when.from_min,
        "to_min": when.to_min,
        "run": when.at is JobTime.RUN,
        "text": jobs_at(when),
    }


def _seconds(dated: Dated, zone: ZoneInfo) -> dict[str, Plain]:
    """Return the times at which a group or an exception starts and stops applying, in epoch seconds."""
    return {
        "from_s": None if dated.from_day is None else start_of_day(dated.from_day, zone),
        "until_s": None if dated.until is None else end_of_day(dated.until, zone),
    }


def _bundle(bundle: Bundle) -> dict[str, Plain]:
    return {
        "name": bundle.name,
        "mgpu": bundle.mgpu,
        "cpus": bundle.cpus,
        "mib": bundle.memory_mib,
        "partitions": _name_set(bundle.partitions),
        "gpu_types": _name_set(bundle.gpu_types, lower=True),
        "mode": str(bundle.mode),
        "why": bundle_reason(bundle),
    }


def bundle_reason(bundle: Bundle) -> str:
    """Return the reason that the policy gives for a bundle; without a reason, describe the bundle."""
    if bundle.why is not None:
        return bundle.why
    holder = format_gpus(bundle.mgpu) if bundle.mgpu > 0 else "a job without GPUs"
    parts = []
    if bundle.cpus is not None:
        parts.append(counted(bundle.cpus, "CPU"))
    if bundle.memory_mib is not None:
        parts.append(f"{format_memory_mib(bundle.memory_mib)} of memory")
    if not parts:
        return f"Allowed partitions and GPU types for {holder}."
    return f"Share of {holder}: {' and '.join(parts)}."


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _content(path: Path) -> str:
    """Return a digest of a chained script; "" if the script cannot be read (the Lua code reports this)."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _indexes(names: Iterable[str], index: Mapping[str, int]) -> list[Plain] | None:
    return [index[name] for name in names] or None


def _name_set(names: Iterable[str] | None, *, lower: bool = False) -> dict[str, Plain] | None:
    if names is None:
        return None
    return {name.lower() if lower else name: True for name in sorted(names)}


def _number_set(numbers: Iterable[int]) -> dict[int, Plain]:
    return dict.fromkeys(sorted(set(numbers)), True)
