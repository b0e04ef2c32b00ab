"""Plan the changes to Slurm's own limits that a policy requires; find gaps, remarks and stranded jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from slurm_gpu.policy.language.account_trees import with_listed
from slurm_gpu.policy.language.limits import Scope, set_limits
from slurm_gpu.policy.language.membership import conditions_used
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.native.difference import Difference, Drift, Owned, difference, drift
from slurm_gpu.policy.native.lending import NewQos, derive_lending
from slurm_gpu.policy.native.precedence import replaced_limits
from slurm_gpu.policy.native.preemption import lacks
from slurm_gpu.policy.native.required import SlurmdbdLimits, UnmappedLimit, derive_required_limits, lua_only
from slurm_gpu.policy.native.stranded import Stranded, stranded
from slurm_gpu.policy.native.urgent import derive_urgent
from slurm_gpu.policy.native.urgent import lacks as urgent_lacks
from slurm_gpu.slurm.client import QueuedJob, SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.sacctmgr import Sacctmgr

NO_SLURMDBD = (
    "this Slurm has no slurmdbd, so only job_submit.lua enforces the policy. The script decides before Slurm "
    "adds a job to the queue, and counts accepted jobs itself until then. It is not called when jobs start "
    "or are requeued"
)
NO_URGENT = "urgent: urgent jobs require slurmdbd, which stores their QOS"
NO_LENDING = "owners: GPUs are not lent without slurmdbd, which stores the QOS of loans"
ANY_ACCOUNT = (
    "group {}: without slurmdbd, users can name any account or QOS, or no account, and thus leave the group; "
    "define it by users and unix_groups"
)
NOTHING_MANAGED = "the policy names nothing under `manages:`, so Slurm's own limits are not changed"


@dataclass(frozen=True, slots=True)
class NativePlan:
    """The native part of a policy, compared with the contents of slurmdbd."""

    difference: Difference = field(default_factory=Difference)
    gaps: tuple[UnmappedLimit, ...] = ()
    stranded: tuple[Stranded, ...] = ()
    # Limits that were changed by hand since the last apply.
    drift: tuple[Drift, ...] = ()
    # QOS that are created before limits are set. A rollback keeps these QOS, because they may have jobs.
    new_qos: tuple[NewQos, ...] = ()
    # The reason why the policy has no native part; None if it has one.
    absent: str | None = None

    @property
    def unenforced(self) -> tuple[UnmappedLimit, ...]:
        """Return the limits that are not enforced at all."""
        return tuple(gap for gap in self.gaps if gap.unenforced)


def plan_native(
    policy: Policy,
    names: ResolvedNames,
    settings: SlurmSettings,
    store: Sacctmgr,
    owned: Iterable[Owned],
    jobs: Callable[[], Iterable[QueuedJob]],
    partition_qos: Callable[[], Mapping[str, str | None]],
    today: dt.date,
    uid_of: Callable[[str], int | None],
    n_gpus: int = 0,
) -> NativePlan:
    """Compare a policy with slurmdbd.

    `jobs` returns the queue, and is called only if a limit would change. `partition_qos` returns the QOS of
    each partition, and is called only if a group has partitions.
    `n_gpus` is the number of GPUs in the cluster, and `today` the day in the site's time zone. Raise
    SlurmError if slurmdbd does not answer.
    """
    policy, owned = with_listed(policy, names), tuple(owned)
    if not has_slurmdbd(settings):
        gaps = lua_only(policy, today, "this Slurm has no slurmdbd")
        chosen = sorted({rule.group for rule in policy.rules if _is_left_to_users(policy, rule.group)})
        remarks = ((NO_LENDING,) if policy.owners else ()) + ((NO_URGENT,) if policy.urgent else ())
        remarks += tuple(map(ANY_ACCOUNT.format, chosen))
        return NativePlan(Difference(owned=owned, remarks=remarks), gaps, absent=NO_SLURMDBD)
    if not (policy.manages.qos or policy.manages.accounts or owned):
        gaps = lua_only(policy, today, "policy.yaml manages no accounts or QOS")
        return NativePlan(gaps=gaps, absent=NOTHING_MANAGED)
    accounting = read_accounting(store, settings.cluster)
    if any(group.partitions is not None for group in policy.groups.values()):
        accounting = replace(accounting, partition_qos=partition_qos())
    # A rule for a QOS that this apply creates, such as the QOS of loans, applies once the QOS exists.
    new_urgent = derive_urgent(policy, accounting).fresh()
    lending = derive_lending(policy, replace(accounting, qos=(*accounting.qos, *new_urgent)), n_gpus)
    urgent = derive_urgent(policy, replace(accounting, qos=(*accounting.qos, *lending.fresh())))
    accounting = replace(accounting, qos=(*accounting.qos, *lending.fresh(), *new_urgent))
    wanted = (
        derive_required_limits(policy, names, accounting, today, uid_of)
        .also(lending.bounds)
        .also(urgent.bounds)
    )
    found = accounting.limits()
    change = difference(wanted, found, owned)
    lacking = map(str, (*lacks(settings, policy.owners), *urgent_lacks(settings, policy)))
    wishes = (*lending.remarks, *urgent.remarks, *wanted.remarks)
    replaced = replaced_limits(wanted.bounds, _left_to_slurm(policy), accounting.partition_qos)
    remarks = (*_not_enforced(settings), *lacking, *wishes, *replaced, *change.remarks)
    return NativePlan(
        Difference(change.steps, change.owned, remarks),
        wanted.gaps,
        stranded(jobs(), found, change.steps, accounting.partition_qos) if change.steps else (),
        drift(found, owned),
        (*urgent.new_qos, *lending.new_qos),
    )


def _left_to_slurm(policy: Policy) -> set[str]:
    return {
        rule.id
        for rule in policy.rules
        if any(kind.scope is Scope.RUNNING for kind, _ in set_limits(rule.limits))
    }


def _is_left_to_users(policy: Policy, group: str) -> bool:
    return not conditions_used(policy.groups[group], policy.groups).isdisjoint({"accounts", "qos"})


def read_accounting(store: Sacctmgr, cluster: str) -> SlurmdbdLimits:
    """Return the associations, QOS and tracked TRES of a cluster.

    The three are read at the same time, because sacctmgr spends most of its time connecting to slurmdbd.
    """
    with ThreadPoolExecutor(3) as pool:
        associations, qos = pool.submit(store.associations, cluster), pool.submit(store.qos)
        tres = pool.submit(store.tracked_tres)
        return SlurmdbdLimits(
            cluster=cluster, associations=associations.result(), qos=qos.result(), tres=tres.result()
        )


def _not_enforced(settings: SlurmSettings) -> tuple[str, ...]:
    enforced = settings.raw.get("AccountingStorageEnforce", "none").lower().split(",")
    if {"limits", "safe", "all"}.isdisjoint(enforced):
        return (
            "slurm.conf lacks AccountingStorageEnforce=associations,limits,qos: "
            "slurmctld does not enforce these limits",
        )
    return ()
