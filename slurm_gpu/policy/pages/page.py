"""A policy as a page for the people it binds: every rule, for whom, how much, when, and why."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.policy.language.limit_text import limit_texts
from slurm_gpu.policy.language.limit_value import value_text
from slurm_gpu.policy.language.limits import LIMITS, Scope, set_limits
from slurm_gpu.policy.language.model import (
    Bundle,
    BundleMode,
    CancelIdle,
    Colocation,
    GpuOwner,
    Group,
    Hours,
    IdleAction,
    JobKind,
    Mode,
    Per,
    Policy,
    PolicyRule,
    RuleException,
    RuleLimits,
    Urgent,
)
from slurm_gpu.policy.lua.bundle import bundle_reason
from slurm_gpu.policy.lua.urgent import who_may
from slurm_gpu.text.cells import time_of_day
from slurm_gpu.text.units import counted, format_duration, format_memory_mib, format_mgpu

TITLE = "Rules for jobs on this cluster"
# The reason of the built-in rule one-gpu, as in limits.lua.
ONE_GPU = "All shards of a job on a node come from one GPU. A job that requests more can never start."
CLOSING = (
    "A job must fit every rule that is for it. Each task of a job array counts as one job; shards count as "
    "their part of a GPU. `slurm-gpu explain -- sbatch ...` tells before you submit, `slurm-gpu quota` what "
    "you have in use."
)

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PER = {Per.USER: " per user", Per.GROUP: " for the whole group", Per.JOB: " per job"}
_MODE = {
    Mode.ADVISE: "Advice: jobs beyond it are accepted, with a message.",
    Mode.OBSERVE: "On trial: jobs beyond it are only counted.",
}
_KIND = {
    JobKind.INTERACTIVE: "Only for interactive jobs (srun, salloc).",
    JobKind.BATCH: "Only for batch jobs (sbatch).",
}
_BUNDLE_MODE = {
    BundleMode.FIT: "What a job leaves unsaid is filled in; jobs beyond it are accepted, with a message.",
    BundleMode.OBSERVE: "On trial: jobs beyond it are only counted.",
    BundleMode.ADVISE: "Advice: jobs beyond it are accepted, with a message.",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One rule or bundle in words."""

    name: str
    whom: str
    why: str
    limits: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Whole sentences."""
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PagePart:
    """Sections under a heading of their own."""

    kind: str
    title: str
    opening: str
    """A whole sentence."""
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class PolicyPage:
    """All that a user is told; textpage.py, markdownpage.py and htmlpage.py write it down."""

    rules: tuple[Section, ...]
    others: tuple[PagePart, ...]
    """What is no rule: owners, urgent jobs, jobs that share or are idle, and bundles, where there are any."""
    contact: str | None


def reservation_section(required_gpus: int, mode: str) -> Section:
    """The rule on reservations, which slurm-gpu.yaml sets, and job_submit.lua holds."""
    remarks = {"advise": _MODE[Mode.ADVISE], "observe": _MODE[Mode.OBSERVE]}
    return Section(
        "reservation",
        "built in, by placement: of slurm-gpu.yaml",
        f"Jobs with {counted(required_gpus, 'GPU')} or more need a reservation, so that they start at an "
        "agreed time (slurm-gpu reserve request).",
        remarks=(remarks[mode],) if mode in remarks else (),
    )


def make_page(policy: Policy, besides: tuple[Section, ...] = ()) -> PolicyPage:
    """The policy in words; `besides` are rules that stand elsewhere."""
    built_in = Section("one-gpu", "built in, where GPUs are divided into shards", ONE_GPU)
    owners = PagePart(
        "owner",
        "Whose GPUs they are",
        "Idle GPUs of an owner are lent, and go back when it needs them.",
        tuple(map(_owner, policy.owners)),
    )
    urgent = PagePart(
        "urgent",
        "Jobs that cannot wait",
        "An urgent job starts before all others, and says why.",
        () if policy.urgent is None else (_urgent(policy.urgent, policy),),
    )
    sharing = PagePart(
        "colocation",
        "Sharing a GPU",
        "A job that needs part of a GPU leaves the rest of it to others.",
        () if policy.colocation is None else (_colocation(policy.colocation),),
    )
    idle = PagePart(
        "cancel_idle",
        "GPUs that nobody uses",
        "A job that holds GPUs and computes nothing keeps them from others.",
        () if policy.cancel_idle is None else (_cancel_idle(policy.cancel_idle),),
    )
    bundles = PagePart(
        "bundle",
        "What a job may take along",
        "A job belongs to the first that fits it.",
        tuple(map(_bundle, policy.bundles.values())),
    )
    return PolicyPage(
        rules=(*(_rule(rule, policy) for rule in policy.rules), built_in, *besides),
        others=tuple(part for part in (owners, urgent, sharing, idle, bundles) if part.sections),
        contact=policy.contact,
    )


def conditions(group: Group) -> list[tuple[str, tuple[str, ...]]]:
    """The conditions of a group that are given, by their keys."""
    pairs = [
        ("users", group.users),
        ("unix_groups", group.unix_groups),
        ("accounts", group.accounts),
        ("qos", group.qos),
        ("partitions", group.partitions),
    ]
    return [(key, names) for key, names in pairs if names is not None]


def _rule(rule: PolicyRule, policy: Policy) -> Section:
    group = policy.groups[rule.group]
    remarks = []
    if rule.when is not None:
        remarks.append(f"Only for jobs submitted {_when(rule.when)}.")
    if rule.kind is not None:
        remarks.append(_KIND[rule.kind])
    if rule.mode in _MODE:
        remarks.append(_MODE[rule.mode])
    elif any(kind.scope is Scope.RUNNING for kind, _ in set_limits(rule.limits)):
        remarks.append("Jobs beyond what may run are accepted, and wait.")
    remarks += [
        f"A weekly adjustment may move {LIMITS[one.key].what} running "
        f"between {value_text(one.key, one.low)} and {value_text(one.key, one.high)}."
        for one in rule.adjust
    ]
    return Section(
        name=rule.id,
        whom=f"for {group.name}: {_who(group)}",
        why=rule.why,
        limits=_limit_lines(rule.limits, rule.per),
        remarks=tuple(remarks),
        exceptions=tuple(
            _exception(exception, rule.per) for exception in policy.exceptions if exception.rule == rule.id
        ),
    )


def _exception(exception: RuleException, per: Per) -> str:
    limits = ", ".join(_limit_lines(exception.limits, per))
    granted = f", granted by {exception.granted_by}" if exception.granted_by else ""
    what = f"Exception until {exception.until.isoformat()} for {exception.user}: {limits}"
    return f"{what} ({exception.why}{granted})"


def _owner(owner: GpuOwner) -> Section:
    within = format_duration(owner.return_within_s)
    return Section(
        owner.group,
        f"account {', '.join(owner.accounts)}",
        f"It owns {_count(owner.gpus)}; its own jobs have them, in QOS {owner.qos}.",
        remarks=(
            f"sbatch --qos={owner.lend_in} borrows GPUs that lie idle.",
            f"They go back within {within} when their owner needs them, and the job is requeued; one of srun "
            "or salloc is cancelled.",
        ),
    )


def _urgent(urgent: Urgent, policy: Policy) -> Section:
    requeued = f"Where there is no room, jobs in QOS {', '.join(urgent.preempts)} are requeued for it."
    return Section(
        f"sbatch --qos={urgent.qos} --comment='the reason'",
        f"for {who_may(urgent, policy.groups)}",
        urgent.why,
        remarks=(
            f"{counted(urgent.jobs_running, 'urgent job')} may run at once, others wait; all other rules "
            "hold.",
            *((requeued,) if urgent.preempts else ()),
            "Each is written down, with its reason and whom it overtook.",
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


def _who(group: Group) -> str:
    told = [f"{_CONDITIONS.get(key, key)} {', '.join(names)}" for key, names in conditions(group)]
    who = " and ".join(told) if told else "every job"
    return who if group.until is None else f"{who}; until {group.until.isoformat()}"


def _limit_lines(limits: RuleLimits, per: Per) -> tuple[str, ...]:
    return tuple(limit_texts(limits, _PER[per]))


def _when(when: Hours) -> str:
    days = "on any day" if len(when.days) == len(_DAYS) else f"on {_days(sorted(when.days))}"
    if (when.from_min, when.to_min) == (0, 1440):
        return days
    return f"{days} from {time_of_day(when.from_min)} to {time_of_day(when.to_min)}"


def _days(days: list[int]) -> str:
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{_DAYS[days[0]]} to {_DAYS[days[-1]]}"
    names = [_DAYS[day] for day in days]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _colocation(said: Colocation) -> Section:
    who = "for every job" if said.allowed_groups is None else f"for jobs of {', '.join(said.allowed_groups)}"
    slowed = "Who runs beside whom is chosen so that all are done soonest."
    if said.slowdown is not None:
        slowed = f"Nobody is to be slowed down beside others by more than a factor of {said.slowdown:g}."
    remarks = [
        f"{said.jobs_per_gpu} jobs share a GPU at most; a job waits for its place "
        f"{format_duration(said.max_wait_s)} at most.",
        slowed,
        "Only batch jobs of one GPU share; what nobody knows yet has its GPU for itself.",
    ]
    if said.planner != Colocation().planner:
        remarks.append(f"Planner {said.planner} decides it.")
    if said.required_groups:
        remarks.insert(0, f"Jobs of {', '.join(said.required_groups)} share unasked.")
    if said.mode is Mode.ADVISE:
        remarks.append("On trial: who would share is told, and has a GPU all the same.")
    elif said.mode is Mode.OBSERVE:
        remarks.append("On trial: who would share is only counted.")
    return Section("sbatch --comment=share", who, said.why, remarks=tuple(remarks))


def _cancel_idle(said: CancelIdle) -> Section:
    who = "for every job" if said.groups is None else f"for jobs of {', '.join(said.groups)}"
    if said.exempt:
        who += f", but for those of {', '.join(said.exempt)}"
    times = " and ".join(map(format_duration, said.warn_s))
    what = "cancelled" if said.action is IdleAction.CANCEL else "put back into the queue, held"
    remarks = [
        f"Who has used none of a job's GPUs since it began is warned after {times}.",
        f"After {format_duration(said.after_s)} the job is {what}; never unwarned, never while it was not "
        "wholly seen.",
    ]
    if said.mode is Mode.ADVISE:
        remarks.append("On trial: owners are warned, and no job is ended.")
    elif said.mode is Mode.OBSERVE:
        remarks.append("On trial: nobody is warned, and no job is ended.")
    return Section("idle jobs", who, said.why, remarks=tuple(remarks))
