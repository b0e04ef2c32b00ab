"""A policy, a queue, and what users then do: submissions of every kind, updates, and time that passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from enum import Enum

from hypothesis import strategies as st

from .model import PolicyModel, Request
from .policystrategies import DAYS, policies
from .strategies import ACCOUNTS, MIB, PARTITION_LISTS, every_request, queued


class Source(Enum):
    """What there is of slurm-gpuctld's snapshot."""

    FRESH = "fresh"
    WITHOUT_HOURS = "fresh, but GPU-hours are not known"
    STALE = "too old"
    HALF_WRITTEN = "half written"
    OF_OTHER_GROUPS = "by the groups of another policy"
    ABSENT = "absent"

    @property
    def is_used(self) -> bool:
        return self in (Source.FRESH, Source.WITHOUT_HOURS)


@dataclass(frozen=True)
class Submit:
    """One job; several are the components of a het job. What is only tried (--test-only) leads to no job."""

    components: tuple[Request, ...]
    terse: bool = False
    only_tried: bool = False


@dataclass(frozen=True)
class Again:
    """The last submission once more, or several times."""

    times: int


@dataclass(frozen=True)
class Change:
    """`scontrol update` of one of the jobs that there are."""

    which: int
    fields: Mapping[str, int | str]
    by: str = "owner"
    """owner, root, SlurmUser, or stranger: another user whom Slurm lets do so."""


@dataclass(frozen=True)
class Blind:
    """A submission while neither a snapshot nor the queue can be read."""

    job: Request


@dataclass(frozen=True)
class Pass:
    """Seconds pass, and slurmctld and slurm-gpuctld show what there is."""

    seconds: int
    source: Source


Deed = Submit | Again | Change | Blind


@dataclass(frozen=True)
class Scenario:
    """All of it; `mark` is ":" up to Slurm 23.02, "/" from 23.11 on."""

    policy: PolicyModel
    queue: tuple[tuple[Request, bool], ...]
    """Jobs, and whether they run."""
    hours: int
    """GPU-hours that everybody has used."""
    begin_s: int
    source: Source
    steps: tuple[tuple[Deed, Pass | None], ...]
    mark: str = "/"
    tells_uptime: bool = True
    """Whether the machine does, to slurmctld and slurm-gpuctld alike."""
    placement: str | None = None
    """How far distributed jobs are kept in one zone; None where no zones are told."""


def can_change(job: Request) -> bool:
    """Whether Slurm's record of a pending job tells all of it: not its tasks or sockets."""
    lost = (job.n_tasks, job.tasks_per_node, job.per_task, job.per_socket, job.tasks_per_gpu)
    return all(one is None for one in lost) and (job.shards_per_node or 0) <= 4


def changed(job: Request, fields: Mapping[str, int | str]) -> Request:
    """The job after an update; one of how many GPUs is in the form in which it asked for them."""
    after = replace(job, **{name: value for name, value in fields.items() if name != "gpus"})  # type: ignore[arg-type]
    if "gpus" in fields:
        for form in ("per_job", "per_node"):
            if getattr(job, form) is not None:
                after = replace(after, **{form: fields["gpus"]})  # type: ignore[arg-type]
    if "mib_per_node" in fields:
        after = replace(after, mib_per_cpu=None, mib_per_gpu=None)
    if after.nodes is not None and after.most_nodes is not None and after.most_nodes < after.nodes:
        after = replace(after, most_nodes=after.nodes)
    # CPUs stay as many as they were, however few the nodes become.
    return replace(after, min_cpus=max(after.min_cpus or 0, job.asked_cpus))


_FIELDS: Mapping[str, st.SearchStrategy[int | str]] = {
    "minutes": st.integers(1, 600),
    "partition": PARTITION_LISTS,
    "account": ACCOUNTS,
    "qos": st.sampled_from(["normal", "sg-long"]),
    "nodes": st.integers(1, 8),
    "most_nodes": st.integers(1, 8),
    "gpus": st.integers(1, 12),
    "min_cpus": st.integers(1, 120),
    "mib_per_node": MIB,
}
_CHANGES = st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _FIELDS[name] for name in names})
)
_SUBMISSIONS = st.builds(
    Submit,
    st.lists(every_request(), min_size=1, max_size=1).map(tuple),
    terse=st.booleans(),
    only_tried=st.sampled_from([False] * 7 + [True]),
)
_HET_JOBS = st.builds(Submit, st.lists(every_request(), min_size=2, max_size=3).map(tuple))
_DEEDS = st.one_of(
    _SUBMISSIONS,
    _SUBMISSIONS,
    _SUBMISSIONS,
    _SUBMISSIONS,
    _HET_JOBS,
    st.builds(
        Change,
        st.integers(0, 30),
        _CHANGES,
        st.sampled_from(["owner"] * 7 + ["root", "SlurmUser", "stranger"]),
    ),
    st.builds(Change, st.integers(0, 30), _CHANGES),
    st.builds(Change, st.integers(0, 30), _CHANGES),
    st.builds(Blind, every_request()),
    st.builds(Again, st.integers(1, 4)),
)
_SOURCES = st.sampled_from([Source.FRESH] * 4 + [Source.ABSENT] * 4 + list(Source))
_PASSES = st.builds(Pass, st.sampled_from([1, 1, 3, 40]), _SOURCES)
_MIDNIGHTS = [int(datetime.combine(day, time(), UTC).timestamp()) for day in DAYS]

LEAST_STEPS = 8


def scenarios(meets: str) -> st.SearchStrategy[Scenario]:
    """All that the language, and a cluster, can do; one of LIMITS_TO_MEET is met in each."""
    return st.builds(
        Scenario,
        policy=policies(meets),
        queue=st.lists(queued(every=True), max_size=6).map(tuple),
        hours=st.integers(0, 50),
        begin_s=st.builds(int.__add__, st.sampled_from(_MIDNIGHTS), st.integers(0, 2 * 86400)),
        source=_SOURCES,
        steps=st.lists(
            st.tuples(_DEEDS, st.none() | _PASSES), min_size=LEAST_STEPS, max_size=LEAST_STEPS + 4
        ).map(tuple),
        mark=st.sampled_from([":", "/"]),
        tells_uptime=st.booleans(),
        placement=st.sampled_from([None, "observe", "advise", "enforce"]),
    )
