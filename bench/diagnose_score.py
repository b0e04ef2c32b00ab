"""Compare verdicts with the truth: the cause and the named workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.diagnose_injector import Case
from slurm_gpu.diagnose.verdict import Cause, Verdict

FAULT_CAUSES = (Cause.IMBALANCE, Cause.SLOW, Cause.COMMUNICATION, Cause.STARVATION, Cause.HANG)
# A healthy verdict claims that the job loses less than this share of its time.
HEALTHY_LOSS = 0.1
_LINK_ENDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdicts on one case. `said` is the last one; `alarms` are those on a healthy training run."""

    name: str
    kind: str
    truth: Cause
    undecidable: bool
    size: float
    n_gpus: int
    model: str
    timeline: bool
    hosts: bool
    timed: bool
    """Whether timings of steps were available."""
    gpu_hours: float
    said: Cause
    said_kind: str
    suspect: bool
    confidence: float
    """Confidence of the last verdict; 0 if the verdict is inconclusive."""
    culprit: bool | None
    """Whether the right workers are named; None if the cause is wrong."""
    alarms: tuple[tuple[str, bool], ...] = ()
    """(cause, suspected) of each false alarm on a healthy training run."""
    detected_s: float | None = None
    """Seconds from the fault to its detection; None if it was not found or existed from the beginning."""
    onset: bool = False
    others: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """By baseline: whether it named a worker, and whether this was right."""

    @property
    def right(self) -> bool:
        """Return whether the cause is right."""
        return self.said is self.truth


def named_right(case: Case, verdict: Verdict) -> bool:
    """Return whether all culprits are named, and no healthy worker."""
    fault = case.fault
    assert fault is not None
    rows = {worker: row for row, worker in enumerate(case.recording.workers)}
    by_name = {worker.name: row for worker, row in rows.items()}
    node = case.job.node()
    # Timings contain only ranks, which are numbered like rows.
    workers = {rows.get(worker, -1 if worker.rank is None else worker.rank) for worker in verdict.culprits}
    nodes = {int(name.removeprefix("n")) - 1 for name in verdict.nodes if name}
    roles: set[int] = set()
    for role in verdict.roles:
        members = verdict.groups.get(role, (role,))
        roles |= {by_name[member] for member in members if member in by_name}
        roles |= {int(member[5:]) for member in members if re.fullmatch("rank [0-9]+", member)}
    truth = set(fault.culprits)
    named = workers | roles or set(np.flatnonzero(np.isin(node, list(nodes))).tolist())
    its_nodes = set(node[list(truth)].tolist())
    named_nodes = nodes or set(node[list(named)].tolist())
    if not fault.named:
        whom = truth or set(rows.values())
        return 2 * len(named & whom) >= len(whom) or not named or bool(truth and its_nodes <= named_nodes)
    if fault.exact:
        return named == truth
    if fault.cause is Cause.COMMUNICATION:
        return its_nodes <= named_nodes and len(named_nodes) <= _LINK_ENDS
    return bool(named) and named <= truth


def blamed_right(case: Case, row: int) -> bool:
    """Return whether the worker that a baseline names is a culprit, if there are any."""
    return case.fault is not None and row in case.fault.culprits


def confusion(outcomes: Sequence[Outcome]) -> dict[Cause, dict[Cause, int]]:
    """Count cases by true cause and by verdict."""
    table = {truth: dict.fromkeys(Cause, 0) for truth in Cause}
    for outcome in outcomes:
        table[outcome.truth][outcome.said] += 1
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """The scores of one class."""

    cases: int
    precision: float | None
    recall: float
    culprit: float | None


def by_class(outcomes: Sequence[Outcome]) -> dict[Cause, Class]:
    """Return precision over all verdicts of each class, and recall over all cases of the class."""
    found = {}
    for cause in FAULT_CAUSES:
        are = [item for item in outcomes if item.truth is cause]
        said = [item for item in outcomes if item.said is cause]
        right = [item for item in are if item.right]
        if not are:
            continue
        found[cause] = Class(
            cases=len(are),
            precision=len(right) / len(said) if said else None,
            recall=len(right) / len(are),
            culprit=sum(bool(item.culprit) for item in right) / len(right) if right else None,
        )
    return found


def false_alarms(outcomes: Sequence[Outcome], *, sure: bool = False) -> tuple[int, float]:
    """Return the number of healthy cases with an alarm (if `sure`, without suspicions), and GPU-hours."""
    healthy = [item for item in outcomes if item.truth is Cause.HEALTHY]
    alarmed = sum(any(not (sure and suspect) for _, suspect in item.alarms) for item in healthy)
    return alarmed, sum(item.gpu_hours for item in healthy)


def healthy_with_loss(outcomes: Sequence[Outcome], least: float) -> int:
    """Return how many faulty training runs that lose at least this share of time were called healthy."""
    return sum(
        item.truth in FAULT_CAUSES and item.size >= least and item.said is Cause.HEALTHY for item in outcomes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """The stated confidence of verdicts of one sort, and the share of them that was right."""

    sort: str
    stated: float
    right: float
    n: int


def calibration(outcomes: Sequence[Outcome]) -> tuple[float, list[Reliability]]:
    """Compare stated confidence with the share of right verdicts, for each sort of verdict.

    Return the expected calibration error and the sorts. Inconclusive verdicts make no claim and do not count.
    """
    said = [item for item in outcomes if item.said is not Cause.INCONCLUSIVE and not item.undecidable]
    rows = []
    for sort in ("suspected cause", "cause", "healthy"):
        part = [item for item in said if _sort(item) == sort]
        if part:
            stated = sum(item.confidence for item in part) / len(part)
            right = sum(_claim_holds(item) for item in part) / len(part)
            rows.append(Reliability(sort=sort, stated=stated, right=right, n=len(part)))
    return sum(abs(row.stated - row.right) * row.n for row in rows) / max(len(said), 1), rows


def _sort(item: Outcome) -> str:
    if item.said is Cause.HEALTHY:
        return "healthy"
    return "suspected cause" if item.suspect else "cause"


def _claim_holds(item: Outcome) -> bool:
    """Return whether the cause is right, or a healthy job loses less than a tenth of its time."""
    return item.right or (item.said is Cause.HEALTHY and item.size < HEALTHY_LOSS)


def detection(outcomes: Sequence[Outcome], least_size: float = 0.0) -> tuple[int, list[float]]:
    """Return the number of cases whose fault began during observation, and the delays of detection."""
    seen = [item for item in outcomes if item.onset and item.size >= least_size]
    return len(seen), sorted(item.detected_s for item in seen if item.detected_s is not None)
