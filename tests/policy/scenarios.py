"""Hypothesis strategies for scenarios: a policy, a queue, submissions, updates and elapsed time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hypothesis import strategies as st

from .model import PolicyModel, Request
from .policystrategies import policies
from .strategies import ACCOUNTS, BEGINS, MIB, MIDNIGHTS, PARTITION_LISTS, every_request, queued


class Source(Enum):
    """The state of slurm-gpuctld's snapshot."""

    FRESH = "fresh"
    WITHOUT_HOURS = "fresh, without GPU-hours"
    STALE = "too old"
    HALF_WRITTEN = "half written"
    OTHER_GROUPS = "with the groups of another policy"
    ABSENT = "absent"

    @property
    def is_used(self) -> bool:
        return self in (Source.FRESH, Source.WITHOUT_HOURS)


@dataclass(frozen=True)
class Submit:
    """Submit one job or the components of a het job; `is_test_only` (--test-only) creates no job."""

    components: tuple[Request, ...]
    terse: bool = False
    is_test_only: bool = False


@dataclass(frozen=True)
class Resubmit:
    """Repeat the last submission once or several times."""

    times: int


@dataclass(frozen=True)
class Change:
    """Run `scontrol update` on one of the jobs in the queue."""

    which: int
    fields: Mapping[str, int | str]
    by: str = "owner"
    """owner, root, SlurmUser, or stranger: another user whom Slurm permits to update the job."""


@dataclass(frozen=True)
class SubmitBlind:
    """Submit a job while neither a snapshot nor the queue can be read."""

    job: Request


@dataclass(frozen=True)
class Pass:
    """Let time pass; slurmctld and slurm-gpuctld then show the current queue."""

    seconds: int
    source: Source


Action = Submit | Resubmit | Change | SubmitBlind


@dataclass(frozen=True)
class Scenario:
    """A policy, a queue and steps; `mark` is ":" up to Slurm 23.02, "/" from 23.11 on."""

    policy: PolicyModel
    queue: tuple[tuple[Request, bool], ...]
    """Jobs, and whether each is running."""
    hours: int
    """Hours of each resource that each user has used."""
    before: int
    """Hours of each resource that each user used in the previous period."""
    begin_s: int
    source: Source
    steps: tuple[tuple[Action, Pass | None], ...]
    mark: str = "/"
    has_uptime: bool = True
    """Whether slurmctld and slurm-gpuctld can read the uptime of the machine."""
    placement: str | None = None
    """The mode in which distributed jobs are kept in one zone; None without zones."""


def can_change(job: Request) -> bool:
    """Return whether Slurm's record of a pending job is complete: records omit tasks and sockets."""
    lost = (job.n_tasks, job.tasks_per_node, job.per_task, job.per_socket, job.tasks_per_gpu)
    return all(one is None for one in lost) and (job.shards_per_node or 0) <= 4


def changed(job: Request, fields: Mapping[str, int | str]) -> Request:
    """Return the job after an update; a new number of GPUs has the form of the request."""
    after = replace(job, **{name: value for name, value in fields.items() if name != "gpus"})  # type: ignore[arg-type]
    if "gpus" in fields:
        for form in ("per_job", "per_node"):
            if getattr(job, form) is not None:
                after = replace(after, **{form: fields["gpus"]})  # type: ignore[arg-type]
    if "mib_per_node" in fields:
        after = replace(after, mib_per_cpu=None, mib_per_gpu=None)
    if "nodes" in fields:  # a record has only the number of nodes that a list or a constraint requires
        after = replace(after, listed_nodes=None, feature_nodes=())
    if after.nodes is not None and after.most_nodes is not None and after.most_nodes < after.nodes:
        after = replace(after, most_nodes=after.nodes)
    # An update to fewer nodes does not reduce the number of CPUs.
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
    "begin_s": BEGINS,
}
_CHANGES = st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _FIELDS[name] for name in names})
)
_SUBMISSIONS = st.builds(
    Submit,
    st.lists(every_request(), min_size=1, max_size=1).map(tuple),
    terse=st.booleans(),
    is_test_only=st.sampled_from([False] * 7 + [True]),
)
_HET_JOBS = st.builds(Submit, st.lists(every_request(), min_size=2, max_size=3).map(tuple))
_ACTIONS = st.one_of(
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
    st.builds(SubmitBlind, every_request()),
    st.builds(Resubmit, st.integers(1, 4)),
)
_SOURCES = st.sampled_from([Source.FRESH] * 4 + [Source.ABSENT] * 4 + list(Source))
_PASSES = st.builds(Pass, st.sampled_from([1, 1, 3, 40]), _SOURCES)

LEAST_STEPS = 8


def scenarios(meets: str) -> st.SearchStrategy[Scenario]:
    """Draw scenarios in which the limit `meets`, one of LIMITS_TO_MEET, applies."""
    return st.builds(
        Scenario,
        policy=policies(meets),
        queue=st.lists(queued(every=True), max_size=6).map(tuple),
        hours=st.integers(0, 50),
        before=st.integers(0, 70),
        begin_s=st.builds(int.__add__, st.sampled_from(MIDNIGHTS), st.integers(0, 2 * 86400)),
        source=_SOURCES,
        steps=st.lists(
            st.tuples(_ACTIONS, st.none() | _PASSES), min_size=LEAST_STEPS, max_size=LEAST_STEPS + 4
        ).map(tuple),
        mark=st.sampled_from([":", "/"]),
        has_uptime=st.booleans(),
        placement=st.sampled_from([None, "observe", "advise", "enforce"]),
    )
