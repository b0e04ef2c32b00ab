"""Hypothesis strategies for policies with every limit, condition, mode and time of the language."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from hypothesis import strategies as st

from .model import (
    GPU_TYPES,
    BundleModel,
    ChangesModel,
    ExceptionModel,
    GroupModel,
    JobsModel,
    Limit,
    OwnerModel,
    PolicyModel,
    RuleModel,
    TierModel,
    When,
)
from .strategies import ACCOUNTS, DAYS, MIB, UIDS, some_of, whole

ZONES = st.sampled_from(["UTC", "Asia/Seoul", "America/New_York", "Europe/Berlin"])

HALVES = st.integers(0, 40).map(lambda n: n * 500)
FEW = st.integers(0, 16).map(lambda n: n * 500)
SECONDS = st.integers(1, 300).map(lambda n: n * 60)


def in_steps(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Limit]:
    """Draw one number, or steps of numbers by the GPUs of the job."""
    steps = st.lists(st.tuples(st.integers(0, 8000), numbers), min_size=1, max_size=3)
    return numbers | steps.map(lambda steps: tuple(sorted(dict(steps).items())))


SOME_PARTITIONS = st.frozensets(st.sampled_from(["gpu", "long"]), min_size=1)
SOME_TYPES = st.frozensets(st.sampled_from(GPU_TYPES), min_size=1)
SOME_QOS = st.frozensets(st.sampled_from(["normal", "sg-long", "sg-vision", "sg-loans"]), min_size=1)

JOB_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    "gpus": FEW,
    "gpus:a100": st.integers(0, 8).map(lambda n: n * 500),
    "gpus:v100": st.integers(0, 4).map(lambda n: n * 500),
    "gpus_per_node": in_steps(st.integers(0, 5)),
    "nodes": in_steps(st.integers(0, 5)),
    "cpus": in_steps(st.integers(0, 40)),
    "memory": in_steps(st.integers(0, 400_000)),
    "cpus_per_gpu": in_steps(st.integers(0, 12)),
    "memory_per_gpu": in_steps(st.sampled_from([0, 8192, 16384, 65536, 200_000])),
    "array_tasks": in_steps(st.integers(0, 5)),
    "tasks": in_steps(st.integers(0, 8)),
    "walltime": in_steps(SECONDS),
    "gpu_hours": st.integers(0, 24),
    "cpu_hours": st.integers(0, 96),
    "billing_hours": st.integers(0, 200),
    "partitions": SOME_PARTITIONS,
    "gpu_types": SOME_TYPES,
    "qos": SOME_QOS,
}
MINIMUMS: Mapping[str, st.SearchStrategy[Limit]] = {
    "at_least:gpus": st.integers(0, 4).map(lambda n: n * 500),
    "at_least:gpus_per_node": in_steps(st.integers(0, 4)),
    "at_least:nodes": in_steps(st.integers(0, 3)),
    "at_least:cpus": in_steps(st.integers(0, 12)),
    "at_least:memory": in_steps(st.integers(0, 40_000)),
    "at_least:cpus_per_gpu": in_steps(st.integers(0, 4)),
    "at_least:memory_per_gpu": in_steps(st.sampled_from([0, 8192, 16384, 65536])),
    "at_least:tasks": in_steps(st.integers(0, 4)),
    "at_least:walltime": in_steps(SECONDS),
}
TOTAL_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    "gpus_total": HALVES,
    "gpus_total:a100": HALVES,
    "gpus_total:v100": HALVES,
    "jobs_total": st.integers(0, 30),
    "cpus_total": st.integers(0, 200),
    "memory_total": st.integers(0, 1_500_000),
}
PENDING_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    "gpus_pending": HALVES,
    "gpus_pending:a100": HALVES,
    "jobs_pending": st.integers(0, 15),
}
PERIOD_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    "gpu_hours:day": st.integers(0, 60),
    "gpu_hours:week": st.integers(0, 60),
    "gpu_hours:month": st.integers(0, 60),
    "gpu_hours:30d": st.integers(0, 60),
    "gpu_hours:week:a100": st.integers(0, 60),
    "gpu_hours:30d:v100": st.integers(0, 60),
    "cpu_hours:day": st.integers(0, 240),
    "cpu_hours:30d": st.integers(0, 240),
    "billing_hours:week": st.integers(0, 400),
}
# A single job is compared with these limits, because a job that exceeds them alone would never start.
RUNNING_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    "gpus_running": HALVES,
    "gpus_running:a100": HALVES,
    "jobs_running": st.integers(0, 15),
    "cpus_running": st.integers(0, 100),
    "memory_running": st.integers(0, 1_000_000),
    "nodes_running": st.integers(0, 10),
}
ALL_LIMITS: Mapping[str, st.SearchStrategy[Limit]] = {
    **JOB_LIMITS,
    **TOTAL_LIMITS,
    **PENDING_LIMITS,
    **PERIOD_LIMITS,
    **RUNNING_LIMITS,
}
_DRAWN = {**ALL_LIMITS, **MINIMUMS}


def limits_of(per: str) -> st.SearchStrategy[dict[str, Limit]]:
    """Draw the two most common limits."""
    if per == "job":
        keys = {"gpus": st.integers(0, 12).map(lambda n: n * 500), "walltime": SECONDS}
    else:
        keys = {"gpus_total": HALVES, "jobs_total": st.integers(0, 15)}
    return st.fixed_dictionaries({}, optional=keys)


@functools.cache
def _keys(per: str, hours: bool) -> st.SearchStrategy[list[str]]:
    of_jobs = (*TOTAL_LIMITS, *PENDING_LIMITS, *RUNNING_LIMITS, *(PERIOD_LIMITS if hours else ()))
    return st.lists(
        st.sampled_from([*JOB_LIMITS] if per == "job" else of_jobs), min_size=1, max_size=4, unique=True
    )


@st.composite
def full_limits_of(draw: st.DrawFn, per: str, *, hours: bool = True) -> dict[str, Limit]:
    """Draw up to four of all limits, and sometimes a minimum."""
    chosen = draw(_keys(per, hours))
    if per == "job" and draw(whole(0, 3)) == 0:
        chosen = [*chosen, draw(_SOME_MINIMUM)]
    return {key: draw(_DRAWN[key]) for key in chosen}


_SOME_MINIMUM = st.sampled_from([*MINIMUMS])
_full_limits_of = functools.cache(full_limits_of)


_SOME_DAYS = st.frozensets(whole(0, 6), min_size=1)
_EITHER = st.booleans()


@st.composite
def whens(draw: st.DrawFn, runs: st.SearchStrategy[bool] = _EITHER) -> When:
    """Draw days and hours of submissions or runs; some hours extend past midnight."""
    begin, length = draw(whole(0, 1439)), draw(whole(1, 1439))
    end = begin + length
    return When(draw(_SOME_DAYS), begin, end if end <= 1440 else end - 1440, draw(runs))


DATES = st.sampled_from([day + dt.timedelta(days=late) for day in DAYS for late in (-1, 0, 1)])
_SOME_DATE = st.none() | DATES
_OF_GROUPS: Mapping[str, st.SearchStrategy[object]] = {
    "users": st.frozensets(UIDS, min_size=1),
    "unix_group": st.sampled_from(["undergrad", "undergrad", "empty"]),
    "accounts": st.frozensets(ACCOUNTS | st.sampled_from(["vis*", "?lp"]), min_size=1),
    "qos": st.frozensets(st.sampled_from(["normal", "sg-long", "sg-*", "*on?"]), min_size=1),
    "partitions": st.frozensets(st.sampled_from(["gpu", "long", "l*", "?pu"]), min_size=1),
}


def _some(conditions: Mapping[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    """Draw up to two conditions."""
    chosen = st.lists(st.sampled_from(sorted(conditions)), max_size=2, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: conditions[key] for key in keys}))


GROUPS: st.SearchStrategy[GroupModel] = _some(_OF_GROUPS).map(lambda own: GroupModel(**own))  # type: ignore[arg-type]
_SOME_GROUPS = st.lists(GROUPS, min_size=1, max_size=2).map(tuple)
_NESTED = _some({**_OF_GROUPS, "all_of": _SOME_GROUPS, "none_of": _SOME_GROUPS}).map(
    lambda own: GroupModel(**own)  # type: ignore[arg-type]
)
_SOME_NESTED = st.lists(_NESTED, min_size=1, max_size=2).map(tuple)
_CONDITIONS: Mapping[str, st.SearchStrategy[object]] = {
    **_OF_GROUPS,
    "all_of": _SOME_NESTED,
    "none_of": _SOME_NESTED,
    "from_day": DATES,
    "until": DATES,
    "when": whens(),
}

_SOME_CONDITIONS = _some(_CONDITIONS)


MODES = st.sampled_from(["enforce", "enforce", "enforce", "advise", "observe"])


# Options that the model's requests have.
OPTIONS = (
    "account",
    "array",
    "constraint",
    "exclusive",
    "gpu_type",
    "mem",
    "nodelist",
    "partition",
    "qos",
    "time",
)
_OPTION = st.sampled_from(OPTIONS)

_SIZES = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(0, 8).map(lambda n: n * 500),
        "nodes": st.integers(0, 4),
        "walltime": SECONDS,
    },
)
_JOBS = st.builds(
    JobsModel,
    _SIZES,
    _SIZES,
    st.none() | st.frozensets(st.sampled_from(GPU_TYPES), min_size=1),
    some_of(None, None, True, False),
    st.none() | st.frozensets(st.sampled_from(["train", "t*", "jupyter", "j?pyter", "*"]), min_size=1),
)


@st.composite
def _with_tiers(draw: st.DrawFn, rule: RuleModel, hours: bool) -> RuleModel:
    """Draw tiers of a rule, or exceptions for groups."""
    are_exceptions = rule.per != "group" and draw(st.booleans())
    tiers = []
    for _ in range(draw(whole(1, 3))):
        if are_exceptions:
            limits = {key: draw(_DRAWN[key]) for key in rule.limits if draw(st.booleans())}
        else:
            limits = draw(_full_limits_of(rule.per, hours=hours)) if draw(whole(0, 3)) else {}
        has_options = rule.per == "job" and not are_exceptions and draw(st.booleans())
        options = {draw(_OPTION): draw(some_of("required", "forbidden"))} if has_options else {}
        days = draw(_SOME_DATE), draw(_SOME_DATE)
        tiers.append(TierModel(draw(_NESTED), limits, options, *days))
    if are_exceptions or draw(st.booleans()):
        last = {} if are_exceptions else draw(_full_limits_of(rule.per, hours=hours))
        tiers.append(TierModel(None, last))
    own = rule.limits if are_exceptions else {}
    return replace(rule, limits=own, tiers=tuple(tiers), are_exceptions=are_exceptions)


_SET: Mapping[str, st.SearchStrategy[str | int]] = {
    "partition": st.sampled_from(["gpu", "long", "gpu,long", "closed"]),
    "qos": st.sampled_from(["normal", "sg-long", "sg-loans"]),
    "constraint": st.sampled_from(["big", "fast", "fast&big", "fast|slow"]),
    "exclusive": st.just(True),
    "nodes": st.integers(1, 4),
}
_DEFAULTS: Mapping[str, st.SearchStrategy[str | int]] = {
    **{key: values for key, values in _SET.items() if key != "exclusive"},
    "walltime": SECONDS,
}
CHANGES = tuple(f"set:{key}" for key in dict.fromkeys((*_SET, *_DEFAULTS)))
_CHANGE_MODES = st.sampled_from(["fit", "fit", "fit", "advise", "observe"])
_SOME_CHANGES = st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3, unique=True)


@st.composite
def _changing(draw: st.DrawFn, name: str, keys: list[str]) -> RuleModel:
    """Draw a rule that changes these options, such as set:qos."""
    always, by_default, limits = {}, {}, {}
    for key in (one.partition(":")[2] for one in keys):
        if key in _SET and (key == "exclusive" or draw(st.booleans())):
            always[key] = draw(_SET[key])
        elif key == "walltime" and draw(st.booleans()):
            limits[key] = draw(_DRAWN[key])
        else:
            by_default[key] = draw(_DEFAULTS[key])
    mode = "fit" if limits and not (always or by_default) else draw(_CHANGE_MODES)
    return RuleModel(
        name,
        "job",
        mode,
        on_error=draw(some_of("allow", "deny")),
        kind=draw(some_of(None, None, "interactive", "batch")),
        jobs=draw(_JOBS) if draw(st.booleans()) else None,
        limits=limits,
        changes=ChangesModel(always, by_default),
        exceptions={draw(UIDS): ExceptionModel({"walltime": draw(SECONDS)})} if limits else {},
        **draw(_SOME_CONDITIONS),
    )


_OVER_LIMIT = st.sampled_from(
    [
        {"qos": "sg-long"},
        {"qos": "sg-loans"},
        {"partition": "long"},
        {"partition": "closed"},
        {"partition": "long", "qos": "sg-long"},
    ]
)


def _with_over_limit(draw: st.DrawFn, rule: RuleModel) -> RuleModel:
    """Draw the options of jobs over the limits of a rule, which may have no limit on running jobs."""
    limits = {key: value for key, value in rule.limits.items() if key not in RUNNING_LIMITS}
    if rule.per == "job" or not limits:
        return rule
    return replace(
        rule, id=f"over.{rule.id}", limits=limits, over_limit=draw(_OVER_LIMIT), mode=draw(_CHANGE_MODES)
    )


def _may_have_hours(rule: RuleModel) -> bool:
    return rule.jobs is None or rule.per == "job"


def _may_select(per: str, limits: Mapping[str, Limit], kinds: bool) -> bool:
    """Return whether a rule may have conditions, which sums of hours by period do not support."""
    return per == "job" or (kinds and not any(key in PERIOD_LIMITS for key in limits))


@st.composite
def rule_lists(draw: st.DrawFn, *, kinds: bool = True, hours: bool = True) -> list[RuleModel]:
    """Draw up to three rules, some with tiers.

    `hours` allows limits on GPU-hours, and `kinds` allows sums over one kind of job.
    """
    rules = []
    for number in range(draw(whole(0, 2))):
        if draw(st.booleans()):
            rules.append(draw(_changing(f"change{number}", draw(_SOME_CHANGES))))
    for number in range(draw(whole(0, 3))):
        per = draw(some_of("user", "account", "group", "job"))
        limits = draw(_full_limits_of(per, hours=hours))
        exceptions = {}
        if per in ("user", "job") and draw(st.booleans()):
            own = {key: draw(_DRAWN[key]) for key in limits if draw(st.booleans())}
            exceptions = {draw(UIDS): ExceptionModel(own, draw(_SOME_DATE), draw(_SOME_DATE))}
        conditions = draw(_SOME_CONDITIONS)
        kind = draw(some_of(None, None, "interactive", "batch")) if kinds or per == "job" else None
        rule = RuleModel(
            id=f"rule{number}",
            per=per,
            mode=draw(MODES),
            on_error=draw(some_of("allow", "deny")),
            kind=kind,
            jobs=draw(_JOBS) if _may_select(per, limits, kinds) and draw(st.booleans()) else None,
            limits=limits,
            hard=any(key in PERIOD_LIMITS for key in limits) and draw(st.booleans()),
            carry_over=any(key in PERIOD_LIMITS for key in limits) and draw(st.booleans()),
            exceptions=exceptions,
            **conditions,  # type: ignore[arg-type]
        )
        if draw(whole(0, 2)) == 0:
            rule = draw(_with_tiers(rule, hours and _may_have_hours(rule)))
        elif draw(whole(0, 3)) == 0:
            rule = _with_over_limit(draw, rule)
        rules += rule.parts
    return rules


_RULE_LISTS = rule_lists()


BUNDLES = st.lists(
    st.builds(
        BundleModel,
        name=st.sampled_from(["train", "small", "prep"]),
        mgpu=st.sampled_from([0, 0, 500, 1000, 2000]),
        cpus=st.none() | st.integers(1, 16),
        mib=st.none() | MIB,
        partitions=st.none() | st.sampled_from([frozenset({"gpu"}), frozenset({"long"})]) | SOME_PARTITIONS,
        gpu_types=st.none() | SOME_TYPES,
        mode=st.sampled_from(["fit", "observe", "advise", "enforce"]),
    ),
    max_size=3,
    unique_by=lambda bundle: bundle.name,
)


_OF_PARTITION = st.builds(
    BundleModel,
    name=st.just("cpu"),
    mgpu=st.just(0),
    partitions=st.sampled_from([frozenset({"gpu"}), frozenset({"long"})]),
    mode=MODES,
)


OWNERS = st.lists(
    ACCOUNTS.flatmap(
        lambda account: st.builds(
            OwnerModel, st.just(account), st.integers(1, 8).map(lambda n: n * 1000), st.just(f"sg-{account}")
        )
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda owner: owner.account,
)


# Constructs other than limits, options and changes.
CONSTRUCTS = ("bundles", "hours of the run", "over_limit", "sums over some jobs")
# Each limit is drawn deliberately, because random draws would miss some.
LIMITS_TO_MEET = (
    *JOB_LIMITS,
    *TOTAL_LIMITS,
    *PERIOD_LIMITS,
    *CONSTRUCTS,
    *RUNNING_LIMITS,
    *MINIMUMS,
    *(f"option:{option}" for option in OPTIONS),
    *CHANGES,
)
_HOURS_OF_RUNS = whens(st.just(True))


def _moved_on(rule: RuleModel, rules: Sequence[RuleModel]) -> tuple[Mapping[str, str], ...]:
    """Return the options of the rules that may move jobs on after `rule` has moved them."""
    reached = [rule] if rule.over_limit else []
    for one in reached:
        reached += [
            other
            for other in rules
            if other.over_limit and other not in reached and _requires(other, one.over_limit)
        ]
    return tuple(one.over_limit for one in reached[1:])


def _requires(group: RuleModel | GroupModel, options: Mapping[str, str]) -> bool:
    """Return whether a group names the QOS or the partition, itself or in a group that it requires."""
    qos, partition = options.get("qos"), options.get("partition")
    return (
        any(qos is not None and fnmatchcase(qos, name) for name in group.qos or ())
        or any(partition is not None and fnmatchcase(partition, name) for name in group.partitions or ())
        or any(_requires(other, options) for other in group.all_of)
    )


@st.composite
def policies(draw: st.DrawFn, meets: str) -> PolicyModel:
    """Draw rules, a time zone, sometimes bundles or owners, and always a limit of kind `meets`."""
    bundles = draw(BUNDLES) if meets == "bundles" or draw(whole(0, 2)) == 0 else []
    if meets == "bundles":
        # Without another bundle for them, jobs without GPUs may use only this one's partitions.
        bundles = [one for one in bundles if one.mgpu or draw(st.booleans())] + [draw(_OF_PARTITION)]
    rules = draw(_RULE_LISTS)
    if meets == "hours of the run":
        limits = draw(limits_of("job"))
        rules = [
            RuleModel("rule-met", "job", draw(MODES), limits=limits, when=draw(_HOURS_OF_RUNS)),
            *rules,
        ]
    elif meets in CHANGES:
        drawn = draw(_changing("rule-met", [meets]))
        met = RuleModel(
            "rule-met",
            "job",
            drawn.mode,
            limits=drawn.limits,
            changes=drawn.changes,
            exceptions=drawn.exceptions,
        )
        rules = [met, *rules]
    elif meets == "sums over some jobs":
        per = draw(some_of("user", "account", "group"))
        limits = draw(limits_of(per).filter(bool))
        rules = [RuleModel("rule-met", per, draw(MODES), jobs=draw(_JOBS), limits=limits), *rules]
    elif meets == "over_limit":
        limits = {key: draw(_DRAWN[key]) for key in ("gpus_total", draw(st.sampled_from([*PERIOD_LIMITS])))}
        met = RuleModel("met", draw(some_of("user", "account", "group")), limits=limits)
        rules = [_with_over_limit(draw, met), *rules]
    elif meets.startswith("option:"):
        options = {meets.partition(":")[2]: draw(some_of("required", "forbidden"))}
        rules = [RuleModel("rule-met", "job", draw(MODES), options=options), *rules]
    elif meets != "bundles":
        per = "job" if meets in (*JOB_LIMITS, *MINIMUMS) else draw(some_of("user", "group"))
        limits = {meets: draw(_DRAWN[meets])}
        met = RuleModel("rule-met", per, draw(MODES), limits=limits)
        if meets in PERIOD_LIMITS:
            met = replace(met, carry_over=draw(st.booleans()), hard=draw(st.booleans()))
        rules = [met, *rules]
    owners = draw(OWNERS) if draw(whole(0, 2)) == 0 else []
    unowned_mgpu = 1000 * draw(whole(0, 6))
    rules = [replace(rule, moved_on=_moved_on(rule, rules)) for rule in rules]
    return PolicyModel(tuple(rules), tuple(bundles), draw(ZONES), tuple(owners), unowned_mgpu)
