"""Describe a policy for its users: the jobs, limits, times and reason of every rule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from slurm_gpu.policy.language.account_trees import tree_text
from slurm_gpu.policy.language.hour_sums import named, sums_of
from slurm_gpu.policy.language.hours_text import jobs_at
from slurm_gpu.policy.language.job_changes import OverLimitOptions, options_text
from slurm_gpu.policy.language.limit_text import limit_texts
from slurm_gpu.policy.language.limit_value import value_text
from slurm_gpu.policy.language.limits import LIMITS, Scope, flat_limits, set_limits
from slurm_gpu.policy.language.model import (
    Bundle,
    BundleMode,
    CancelIdle,
    Colocation,
    GpuOwner,
    Group,
    IdleAction,
    JobKind,
    JobTime,
    Mode,
    Need,
    Per,
    Policy,
    PolicyRule,
    RuleException,
    Tier,
    Urgent,
)
from slurm_gpu.policy.language.tiers import whole_rules
from slurm_gpu.policy.lua.bundle import bundle_reason
from slurm_gpu.policy.lua.urgent import describe_urgent_users
from slurm_gpu.text.units import counted, format_duration, format_memory_mib, format_mgpu

TITLE = "Rules for jobs on this cluster"
# The reason of the built-in rule one-gpu, as in limits.lua.
ONE_GPU = (
    "All shards of a job on a node come from one GPU, so a job cannot request more per node than one GPU has."
)
CLOSING = (
    "A job must comply with every rule that applies to it. Each task of a job array counts as one job; "
    "shards count as fractions of a GPU. `slurm-gpu explain -- sbatch ...` checks a command before you "
    "submit it, and `slurm-gpu quota` shows your usage."
)

_RUN = ", between their earliest start (now or --begin) and their time limit"
_PER = {
    Per.USER: " per user",
    Per.ACCOUNT: " per account",
    Per.GROUP: " for the whole group",
    Per.JOB: " per job",
}
_MODE = {
    Mode.ADVISE: "Advice only: jobs that violate it are accepted with a warning.",
    Mode.OBSERVE: "On trial: jobs that violate it are only counted.",
}
# The modes of rules that change jobs.
_CHANGE_MODE = {
    Mode.FIT: "Jobs are changed at submission, and each change is printed.",
    Mode.ADVISE: "Advice only: jobs stay as they are, and the better options are printed.",
    Mode.OBSERVE: "On trial: jobs stay as they are.",
}
_OVER_LIMIT_MODE = {
    Mode.FIT: "Jobs over a limit get {} instead of being refused. Jobs with these options do not count.",
    Mode.ADVISE: "Advice only: jobs over a limit stay as they are, and {} is suggested.",
    Mode.OBSERVE: "On trial: jobs over a limit stay as they are; they would get {}.",
}
# The mode of a tier that differs from that of its rule.
_TIER_MODE = _MODE | {Mode.ENFORCE: "Enforced.", Mode.FIT: "A longer time limit is shortened."}
_NEED = {Need.REQUIRED: "Jobs must set", Need.FORBIDDEN: "Jobs must not set"}
_OPTIONS = {"gpu_type": "the type of each GPU", "mem": "--mem, --mem-per-cpu or --mem-per-gpu"}
_KIND = {
    JobKind.INTERACTIVE: "Only for interactive jobs (srun, salloc).",
    JobKind.BATCH: "Only for batch jobs (sbatch).",
}
_BUNDLE_MODE = {
    BundleMode.FIT: "Missing options are filled in; larger jobs are accepted with a warning.",
    BundleMode.OBSERVE: "On trial: larger jobs are only counted.",
    BundleMode.ADVISE: "Advice only: larger jobs are accepted with a warning.",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One rule or bundle in words."""

    name: str
    whom: str
    why: str
    limits: tuple[str, ...] = ()
    # Remarks in whole sentences.
    remarks: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PagePart:
    """Sections under one heading."""

    kind: str
    title: str
    # An introduction of one whole sentence.
    opening: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class PolicyPage:
    """All texts of the page for users; text.py, markdown.py and html.py render the page."""

    rules: tuple[Section, ...]
    # Owners, urgent jobs, sharing, idle jobs and bundles, if the policy has them.
    others: tuple[PagePart, ...]
    contact: str | None


def reservation_section(required_gpus: int, mode: str) -> Section:
    """Return the reservation rule, which slurm-gpu.yaml sets and job_submit.lua enforces."""
    remarks = {"advise": _MODE[Mode.ADVISE], "observe": _MODE[Mode.OBSERVE]}
    return Section(
        "reservation",
        "built in, set under placement: in slurm-gpu.yaml",
        f"Jobs with {counted(required_gpus, 'GPU')} or more need a reservation, so that they start at an "
        "agreed time (slurm-gpu reserve request).",
        remarks=(remarks[mode],) if mode in remarks else (),
    )


def make_page(policy: Policy, built_in: tuple[Section, ...] = (), today: dt.date = dt.date.min) -> PolicyPage:
    """Return the policy in words; `built_in` are rules that policy.yaml does not define.

    Exceptions that ended before `today` are left out.
    """
    exceptions = tuple(one for one in policy.exceptions if one.days[1] >= today)
    policy = replace(policy, exceptions=exceptions)
    one_gpu = Section("one-gpu", "built in, where GPUs are divided into shards", ONE_GPU)
    owners = PagePart(
        "owner",
        "Owners of GPUs",
        "Idle GPUs of an owner are lent to other jobs until the owner needs them.",
        tuple(map(_owner, policy.owners)),
    )
    urgent = PagePart(
        "urgent",
        "Jobs that cannot wait",
        "An urgent job starts before all others, and must give a reason.",
        () if policy.urgent is None else (_urgent(policy.urgent, policy),),
    )
    sharing = PagePart(
        "colocation",
        "Sharing a GPU",
        "A job that needs only part of a GPU leaves the rest to other jobs.",
        () if policy.colocation is None else (_colocation(policy.colocation),),
    )
    idle = PagePart(
        "cancel_idle",
        "Unused GPUs",
        "A job that does not use its GPUs prevents other jobs from using them.",
        () if policy.cancel_idle is None else (_cancel_idle(policy.cancel_idle),),
    )
    bundles = PagePart(
        "bundle",
        "CPUs and memory",
        "A job belongs to the first bundle that matches it.",
        tuple(map(_bundle, policy.bundles.values())),
    )
    return PolicyPage(
        rules=(*(_rule(rule, policy) for rule in whole_rules(policy)), one_gpu, *built_in),
        others=tuple(part for part in (owners, urgent, sharing, idle, bundles) if part.sections),
        contact=policy.contact,
    )


def conditions(group: Group) -> list[tuple[str, tuple[str, ...]]]:
    """Return the key and the names of each condition that a group sets."""
    pairs = [
        ("users", group.users),
        ("unix_groups", group.unix_groups),
        ("accounts", group.accounts),
        ("qos", group.qos),
        ("partitions", group.partitions),
        ("in", group.all_of or None),
        ("not", group.none_of or None),
    ]
    return [(key, names) for key, names in pairs if names is not None]


def _rule(rule: PolicyRule, policy: Policy) -> Section:
    whom = "for every job"
    if rule.group:
        whom = f"for {rule.group}: {_group_text(policy.groups[rule.group], policy.groups)}"
    if rule.jobs is not None:
        whom += f"; only jobs {rule.jobs.text}"
    if rule.tiers:
        whom += "; only the first line that matches a job applies"
    remarks = _needs(rule)
    if rule.hard:
        sums = (key for part in rule.with_limits for key in sums_of(flat_limits(part.limits), hard=True))
        remarks.append(f"{named(sums)} that pending and running jobs may still use also count.")
    if rule.carry_over:
        remarks.append("Unused hours of the previous period's limit are added.")
    if rule.when is not None:
        remarks.append(f"Only for jobs {jobs_at(rule.when)}{_RUN if rule.when.at is JobTime.RUN else ''}.")
    if rule.kind is not None:
        remarks.append(_KIND[rule.kind])
    if rule.changes_jobs:
        if rule.over_limit is None:
            remarks.append(_CHANGE_MODE[rule.mode])
        else:
            remarks.append(_over_limit(rule.over_limit, rule.mode))
        if any(part.limits.walltime is not None for part in rule.with_limits):
            remarks.append("A longer time limit is shortened, and the job is not refused.")
    elif rule.mode in _MODE:
        remarks.append(_MODE[rule.mode])
    elif any(kind.scope is Scope.RUNNING for part in rule.with_limits for kind, _ in set_limits(part.limits)):
        remarks.append("Jobs that exceed it together wait; a job that exceeds it by itself is refused.")
    remarks += [
        f"A weekly adjustment may move the limit on {_running(LIMITS[one.key].what)} "
        f"between {value_text(one.key, one.low)} and {value_text(one.key, one.high)}."
        for one in rule.adjust
    ]
    return Section(
        name=rule.id,
        whom=whom,
        why=rule.why,
        limits=(
            *_changes(rule),
            *_limit_lines(rule, rule.per),
            *(_tier(tier, rule, policy) for tier in rule.tiers),
        ),
        remarks=tuple(remarks),
        exceptions=tuple(
            _exception(exception, rule.per, policy)
            for exception in policy.exceptions
            if exception.rule == rule.id
        ),
    )


def _tier(tier: Tier, rule: PolicyRule, policy: Policy) -> str:
    jobs = "all other jobs" if tier.group is None else _named(tier.group, policy.groups)
    text = f"{jobs}: {', '.join(_limit_lines(tier, rule.per)) or 'no limit'}"
    if tier.why is not None:
        text += f" ({tier.why})"
    text = ". ".join((text, *(need.removesuffix(".") for need in _needs(tier))))
    if tier.mode in (None, rule.mode):
        return text
    mode = _TIER_MODE[tier.mode] if rule.over_limit is None else _over_limit(rule.over_limit, tier.mode)
    return f"{text}. {mode}"


def _over_limit(over_limit: OverLimitOptions, mode: Mode) -> str:
    return _OVER_LIMIT_MODE[mode].format(options_text(over_limit.table()))


def _named(group: str, groups: Mapping[str, Group]) -> str:
    return f"{group} ({_group_text(groups[group], groups)})"


def _running(what: str) -> str:
    return "running jobs" if what == "jobs" else f"{what} of running jobs"


def _exception(exception: RuleException, per: Per, policy: Policy) -> str:
    limits = ", ".join(_limit_lines(exception, per))
    granted = f", granted by {exception.granted_by}" if exception.granted_by else ""
    days = f"{exception.days_text()} " if exception.days_json() else ""
    whom = exception.user or _named(exception.group or "", policy.groups)
    what = f"Exception {days}for {whom}: {limits}"
    return f"{what} ({exception.why}{granted})"


def _owner(owner: GpuOwner) -> Section:
    within = format_duration(owner.return_within_s)
    return Section(
        owner.group,
        f"account {', '.join(owner.accounts)}",
        f"It owns {_count(owner.gpus)}; its own jobs run in QOS {owner.qos}.",
        remarks=(
            f"sbatch --qos={owner.lend_in} borrows idle GPUs.",
            f"The GPUs return within {within} when the owner needs them. The job is then requeued; srun and "
            "salloc jobs are cancelled.",
        ),
    )


def _urgent(urgent: Urgent, policy: Policy) -> Section:
    requeued = (
        f"If an urgent job does not fit, jobs in QOS {', '.join(urgent.preempts)} are requeued to make room."
    )
    return Section(
        f"sbatch --qos={urgent.qos} --comment='the reason'",
        f"for {describe_urgent_users(urgent, policy.groups)}",
        urgent.why,
        remarks=(
            f"At most {counted(urgent.jobs_running, 'urgent job')} may run at once; others wait. All "
            "other rules apply.",
            *((requeued,) if urgent.preempts else ()),
            "Each urgent job is logged with its reason and the jobs that it overtook.",
        ),
    )


def _count(gpus: int) -> str:
    return counted(gpus, "GPU")


def _bundle(bundle: Bundle) -> Section:
    without = bundle.mgpu == 0
    whom = "jobs without GPUs" if without else f"jobs with GPUs{_of_types(bundle)}"
    if bundle.partitions is not None and not without:
        whom += f" in {', '.join(bundle.partitions)}"
    each = "" if without else f" for each {_gpus(bundle.mgpu)}"
    limits = []
    if bundle.cpus is not None:
        limits.append(f"at most {counted(bundle.cpus, 'CPU')}{each}")
    if bundle.memory_mib is not None:
        limits.append(f"at most {format_memory_mib(bundle.memory_mib)} of memory{each}")
    if without and bundle.partitions is not None:
        limits.append(f"only in {', '.join(bundle.partitions)}")
    remarks = (_BUNDLE_MODE[bundle.mode],) if bundle.mode in _BUNDLE_MODE else ()
    return Section(bundle.name, whom, bundle_reason(bundle), tuple(limits), remarks)


def _of_types(bundle: Bundle) -> str:
    return "" if bundle.gpu_types is None else f" of type {' or '.join(bundle.gpu_types)}"


def _gpus(mgpu: int) -> str:
    return "GPU" if mgpu == 1000 else f"{format_mgpu(mgpu)} GPUs"


_CONDITIONS = {"unix_groups": "UNIX groups", "qos": "QOS"}


def _group_text(group: Group, groups: Mapping[str, Group]) -> str:
    def named(names: Iterable[str]) -> str:
        return " and ".join(_named(name, groups) for name in names)

    parts = [f"jobs of {named(group.all_of)}"] if group.all_of else []
    parts += [
        f"{_CONDITIONS.get(key, key)} {', '.join(map(tree_text, names) if key == 'accounts' else names)}"
        for key, names in conditions(group)
        if key not in ("in", "not")
    ]
    jobs = " and ".join(parts) if parts else "every job"
    if group.none_of:
        jobs += f", except jobs of {named(group.none_of)}"
    return f"{jobs}; {days}" if (days := group.days_text()) else jobs


def _changes(rule: PolicyRule) -> Iterator[str]:
    if rule.set is not None:
        also = " (in addition to their own constraint)" if rule.set.constraint is not None else ""
        yield f"jobs get {options_text(rule.set.table())}{also}"
    for key, value in () if rule.defaults is None else rule.defaults.table().items():
        if value is not None:
            option = options_text({key: value})
            yield f"jobs without {option.partition('=')[0]} get {option}"


def _needs(of: PolicyRule | Tier) -> list[str]:
    return [f"{_NEED[need]} {_OPTIONS.get(option, f'--{option}')}." for option, need in of.options.items()]


def _limit_lines(of: PolicyRule | Tier | RuleException, per: Per) -> tuple[str, ...]:
    return tuple(limit_texts(of.limits, of.at_least, _PER[per]))


def _colocation(colocation: Colocation) -> Section:
    jobs = (
        "for every job"
        if colocation.allowed_groups is None
        else f"for jobs of {', '.join(colocation.allowed_groups)}"
    )
    slowed = "Co-runners are chosen so that all jobs end as early as possible."
    if colocation.slowdown is not None:
        slowed = (
            "Co-runners are chosen so that no job is slowed down by more than a factor of "
            f"{colocation.slowdown:g}."
        )
    remarks = [
        f"At most {colocation.jobs_per_gpu} jobs share a GPU; a job waits for a shared GPU for at "
        f"most {format_duration(colocation.max_wait_s)}.",
        slowed,
        "Only batch jobs with one GPU can share it; a job whose GPU use is not known yet does not share.",
    ]
    if colocation.planner != Colocation().planner:
        remarks.append(f"The planner is {colocation.planner}.")
    if colocation.required_groups:
        remarks.insert(0, f"Jobs of {', '.join(colocation.required_groups)} always share GPUs.")
    if colocation.mode is Mode.ADVISE:
        remarks.append("On trial: users are notified, and their jobs keep a whole GPU.")
    elif colocation.mode is Mode.OBSERVE:
        remarks.append("On trial: jobs that would share are only counted.")
    return Section("sbatch --comment=share", jobs, colocation.why, remarks=tuple(remarks))


def _cancel_idle(cancel_idle: CancelIdle) -> Section:
    jobs = "for every job" if cancel_idle.groups is None else f"for jobs of {', '.join(cancel_idle.groups)}"
    if cancel_idle.exempt:
        jobs += f", except for jobs of {', '.join(cancel_idle.exempt)}"
    times = " and ".join(map(format_duration, cancel_idle.warn_s))
    what = "cancelled" if cancel_idle.action is IdleAction.CANCEL else "requeued and held"
    remarks = [
        f"The owner of a job that has not used any GPU since its start is warned after {times}.",
        f"After {format_duration(cancel_idle.after_s)}, the job is {what}, but never without a warning and "
        "never if its records have gaps.",
    ]
    if cancel_idle.mode is Mode.ADVISE:
        remarks.append("On trial: owners are warned, and no job is ended.")
    elif cancel_idle.mode is Mode.OBSERVE:
        remarks.append("On trial: no user is warned, and no job is ended.")
    return Section("idle jobs", jobs, cancel_idle.why, remarks=tuple(remarks))
