"""One job_submit.lua from the Lua modules and a policy as data (docs/contracts.md, section 4)."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu import __version__
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.luadata import Plain, to_lua
from slurm_gpu.policy.model import Limits, Policy
from slurm_gpu.policy.names import ResolvedNames
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings

RUN_DIRECTORY = Path("/run/slurm-gpu")
DECISIONS_LOG = "decisions.log"
DECISIONS_LOG_BYTES = 64 * 2**20
"""decisions.log is moved aside at this size: it lies in memory."""

MARK = "-- slurm-gpu "
"""How a bundle begins, so that a site's own job_submit.lua is told apart from ours."""

_STAGES = range(10, 80)
"""Numbers of the modules that run for each job, one after another; the others are called by name."""
_ENTRY = 99

_CHECKOUT = Path(__file__).resolve().parent.parent.parent / "plugins" / "job_submit"


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """What the Lua must know of this cluster besides the policy."""

    slurm_user_uid: int = 0
    shards_per_gpu: int | None = None
    """None where no node has shards. Where nodes differ, the most: sizes count at their lower bound."""
    partition_gpus: Mapping[str, int] = field(default_factory=dict)
    """The fewest GPUs that a node of each partition has."""
    shards_span_gpus: bool = False
    """Whether one job's shards may come from several GPUs (MULTIPLE_SHARING_GRES_PJ)."""
    job_state: Path | None = None
    """Where slurmctld saves its jobs."""
    run_directory: Path = RUN_DIRECTORY
    timezone: str = "UTC"
    """In which a day such as `until:` ends."""

    @classmethod
    def of(
        cls, settings: SlurmSettings, nodes: Iterable[SlurmNode], run_directory: Path, timezone: str
    ) -> SiteFacts:
        """The facts that a running Slurm shows."""
        nodes = list(nodes)
        partition_gpus: dict[str, int] = {}
        for node in nodes:
            for partition in node.partitions:
                partition_gpus[partition] = min(partition_gpus.get(partition, node.n_gpus), node.n_gpus)
        shards = [node.shards_per_gpu for node in nodes if node.shards_per_gpu is not None]
        saved = settings.raw.get("StateSaveLocation")
        return cls(
            slurm_user_uid=settings.slurm_user_uid,
            shards_per_gpu=max(shards) if shards else None,
            partition_gpus=partition_gpus,
            shards_span_gpus="MULTIPLE_SHARING_GRES_PJ" in settings.raw.get("SelectTypeParameters", ""),
            job_state=Path(saved) / "job_state" if saved else None,
            run_directory=run_directory,
            timezone=timezone,
        )


def compile_policy(policy: Policy, names: ResolvedNames, facts: SiteFacts) -> dict[str, Plain]:
    """The policy as the plain table that the Lua modules read."""
    index = {name: position for position, name in enumerate(policy.groups, 1)}
    zone = ZoneInfo(facts.timezone)
    groups: list[Plain] = [
        {
            "name": group.name,
            "until_s": None if group.until is None else _end_of(group.until, zone),
            "uids": None if group.users is None else _number_set(names.uids[user] for user in group.users),
            "member_uids": None
            if group.unix_groups is None
            else _number_set(uid for unix_group in group.unix_groups for uid in names.members[unix_group]),
            # Slurm keeps names of accounts and QOS in lower case, whatever was typed.
            "accounts": _name_set(group.accounts, lower=True),
            "qos": _name_set(group.qos, lower=True),
            "partitions": _name_set(group.partitions),
        }
        for group in policy.groups.values()
    ]
    exceptions: dict[str, dict[int, Plain]] = {}
    for exception in policy.exceptions:
        exceptions.setdefault(exception.rule, {})[names.uids[exception.user]] = {
            "until_s": _end_of(exception.until, zone),
            "limits": _limits(exception.limits),
            "why": exception.why,
        }
    rules: list[Plain] = [
        {
            "id": rule.id,
            "group": index[rule.group],
            "per": str(rule.per),
            "why": rule.why,
            "mode": str(rule.mode),
            "on_error": str(rule.on_error),
            "limits": _limits(rule.limits),
            "exceptions": exceptions.get(rule.id),
        }
        for rule in policy.rules
    ]
    return {
        "contact": policy.contact,
        "groups": groups,
        "rules": rules,
        "slurm_user_uid": facts.slurm_user_uid,
        "shards_per_gpu": facts.shards_per_gpu,
        "partition_gpus": dict(sorted(facts.partition_gpus.items())),
        "shards_span_gpus": facts.shards_span_gpus,
        "job_state": None if facts.job_state is None else str(facts.job_state),
        "decisions_log": str(facts.run_directory / DECISIONS_LOG),
        "decisions_log_bytes": DECISIONS_LOG_BYTES,
    }


def build_bundle(compiled: Mapping[str, Plain], directory: Path | None = None) -> str:
    """The whole script; deterministic, so that equal policies give equal bundles."""
    parts = [
        f"{MARK}{__version__}: made from policy.yaml by `slurm-gpu policy apply`; changes here are lost.",
        f"local policy = {to_lua(compiled)}",
        "local lib = { modules = {} }",
    ]
    for number, name, text in _modules(directory if directory is not None else lua_directory()):
        opening = "return (function(...)" if number == _ENTRY else f"lib.{name} = (function(...)"
        parts.append(f"{opening}\n{text.rstrip()}\nend)(policy, lib)")
        if number in _STAGES:
            parts.append(f"lib.modules[#lib.modules + 1] = lib.{name}")
    return "\n\n".join(parts) + "\n"


def lua_directory() -> Path:
    """Where the Lua modules lie: the checkout, the installation's share/, or the package's."""
    candidates = (
        _CHECKOUT,
        Path(sys.prefix) / "share" / "slurm-gpu" / "job_submit",
        Path("/usr/share/slurm-gpu/job_submit"),
    )
    for candidate in candidates:
        if (candidate / "99_entry.lua").is_file():
            return candidate
    raise OutsideError(
        f"the Lua modules of job_submit are missing: looked in {', '.join(map(str, candidates))}"
    )


def _modules(directory: Path) -> list[tuple[int, str, str]]:
    """Number, name and text of each module, in the order in which they run."""
    files = sorted(directory.glob("[0-9][0-9]_*.lua"))
    return [(int(file.stem[:2]), file.stem[3:], file.read_text(encoding="utf-8")) for file in files]


def _limits(limits: Limits) -> dict[str, Plain]:
    return {
        "gpus": limits.gpus_mgpu,
        "gpus_total": limits.gpus_total_mgpu,
        "jobs_total": limits.jobs_total,
        "walltime": limits.walltime_s,
    }


def _name_set(names: Iterable[str] | None, *, lower: bool = False) -> dict[str, Plain] | None:
    if names is None:
        return None
    return {name.lower() if lower else name: True for name in sorted(names)}


def _number_set(numbers: Iterable[int]) -> dict[int, Plain]:
    return dict.fromkeys(sorted(set(numbers)), True)


def _end_of(day: dt.date, zone: ZoneInfo) -> int:
    """Epoch second at which a day is over."""
    if day == dt.date.max:
        return 2**53
    midnight = dt.datetime.combine(day + dt.timedelta(days=1), dt.time(), zone)
    return int(midnight.timestamp())
