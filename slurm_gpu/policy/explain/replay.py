"""Replay past jobs through the script of a policy.

Each submission is judged against the queue at that time, without jobs that the policy would have refused
earlier. Rules that cannot be evaluated from records are left out (`without_unknown`).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_gpu.policy.language.hour_sums import UNITS
from slurm_gpu.policy.language.limits import AT_LEAST, LIMITS
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import Change, PolicyScript, ScalarFields
from slurm_gpu.slurm.job_desc import INFINITE, NO_VAL
from slurm_gpu.slurm.tres import SHARED_GRES, amount, uses_gpus
from slurm_gpu.text.units import counted

# The first line of the message about each rule or bundle that a job violates.
_OPENING = re.compile(r"(?:Refused by|Violates) (?:rule )?(.+?): ")
_REQUEUED = frozenset({"NODE_FAIL", "PREEMPTED", "REQUEUED"})
_GPU = "gres/gpu"
_NORMAL = "normal"
# Limits that cannot be checked: records lack the tasks, GPUs per node and billing units of a request.
_NOT_RECORDED = frozenset({f"{AT_LEAST}tasks", f"{AT_LEAST}gpus_per_node", "billing_hours"})
# Limitations of replaying loans.
_LENDING = (
    "owners: the replay lists jobs that would have borrowed GPUs. All jobs start and end as recorded: no job "
    "is requeued for an owner, and no owner waits for its GPUs. Records do not contain the requested QOS, so "
    "the replay assumes that only jobs in a QOS of loans requested their QOS"
)
_URGENT = (
    "urgent: records do not contain reasons, so the replay assumes that each job in the urgent QOS has one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One job, or one task of an array, from its submission to its end; requeues do not start a new job."""

    job_id: int
    # The ID as Slurm prints it, such as 17 or 17_3.
    label: str
    array_job_id: int | None
    user: str
    uid: int
    account: str
    qos: str
    partition: str
    submit_s: int
    start_s: int | None
    # None while the job is running or pending.
    end_s: int | None
    time_limit_s: int | None
    n_nodes: int
    # The requested totals, with memory in MiB.
    tres: Mapping[str, float]
    # The allocated GPUs in accounting, or the requested GPUs if the job never started; None if unknown.
    n_gpus: float | None

    @property
    def has_gpus(self) -> bool:
        """Return whether the job requests GPUs or parts of GPUs."""
        return bool(self.n_gpus) or uses_gpus(self.tres)

    @property
    def gpu_hours(self) -> float:
        """Return the job's allocated GPU-hours; 0 if unknown."""
        if self.start_s is None or self.end_s is None or self.n_gpus is None:
            return 0.0
        return self.n_gpus * max(0, self.end_s - self.start_s) / 3600


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision on one submission, which is a job or an array with all its tasks."""

    jobs: tuple[PastJob, ...]
    accepted: bool
    # The rules that refused the submission or warned about it.
    rules: tuple[str, ...]
    messages: tuple[str, ...]
    # The QOS and the partitions in which the job would have run.
    qos: str = ""
    partition: str = ""
    # The options that rules set.
    changes: tuple[Change, ...] = ()

    @property
    def first(self) -> PastJob:
        """Return the job, or the array's first task."""
        return self.jobs[0]


@dataclass(slots=True)
class PolicyReplay:
    """All judgements in order of submission; `errors` are the errors in the script's log."""

    judgements: list[Judgement] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    # The QOS of jobs that borrow GPUs.
    loans: frozenset[str] = frozenset()

    @property
    def refused(self) -> list[Judgement]:
        """Return the refused submissions."""
        return [judgement for judgement in self.judgements if not judgement.accepted]

    @property
    def changed(self) -> list[Judgement]:
        """Return the accepted submissions that rules would have changed."""
        return [judgement for judgement in self.judgements if judgement.accepted and judgement.changes]

    @property
    def on_loan(self) -> list[Judgement]:
        """Return the accepted submissions that would have borrowed GPUs."""
        return [
            judgement
            for judgement in self.judgements
            if judgement.accepted and judgement.qos in self.loans and judgement.first.has_gpus
        ]


def without_unknown(compiled: Mapping[str, Plain]) -> tuple[dict[str, Plain], list[str]]:
    """Return the policy without rules that cannot be evaluated from records, and remarks about omissions."""
    remarks = []
    rules: list[Plain] = []
    for rule in _tables(compiled["rules"]):
        kept = dict(rule)
        if kept.get("kind") == "interactive":
            remarks.append(f"rule {rule['id']} is left out: records do not distinguish interactive jobs")
            continue
        if _table(kept.get("jobs")).get("names"):
            remarks.append(f"rule {rule['id']} is left out: records do not contain job names")
            continue
        if _table(kept.get("when")).get("run"):
            remarks.append(
                f"rule {rule['id']}: records do not contain --begin, so the replay assumes that jobs may "
                "start at submission"
            )
        limits = _table(rule["limits"])
        for base in sorted({key.partition(":")[0] for key in limits if _is_period(key)}, reverse=True):
            what = LIMITS[base].what
            remarks.append(f"{what} of rule {rule['id']} are left out: the replay does not count them")
        for key in sorted(_NOT_RECORDED & limits.keys()):
            what = LIMITS[key.removeprefix(AT_LEAST)].what
            remarks.append(f"{key} of rule {rule['id']} is left out: records do not contain {what}")
        if kept.pop("options", None):
            remarks.append(f"options of rule {rule['id']} are left out: records do not contain options")
        if (changes := _table(rule.get("changes"))).get("defaults"):
            kept["changes"] = {**changes, "defaults": {}}
            remarks.append(f"defaults of rule {rule['id']} are left out: records do not contain options")
        kept["limits"] = _recorded(limits)
        kept["exceptions"] = {
            uid: {**own, "limits": _recorded(own["limits"])}
            for uid, own in (rule.get("exceptions") or {}).items()
        }
        rules.append(kept)
    if compiled.get("lending"):
        remarks.append(_LENDING)
    if compiled.get("urgent"):
        remarks.append(_URGENT)
    return {**compiled, "rules": rules, "snapshot": None, "job_state": None}, remarks


def _is_period(key: str) -> bool:
    base, _, period = key.partition(":")
    return base in UNITS and period != ""


def _recorded(limits: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the limits that the replay can compare with records."""
    return {k: v for k, v in limits.items() if not _is_period(k) and k not in _NOT_RECORDED}


def without_size(jobs: Iterable[PastJob]) -> tuple[list[PastJob], list[str]]:
    """Return the jobs whose requests are in Slurm's accounting, and remarks on how many jobs are left out.

    Accounting may lack the request of a job until the job starts.
    """
    jobs = list(jobs)
    shown = [job for job in jobs if job.tres or job.start_s is not None]
    # The script itself converts shards and MPS to GPUs, with the policy's numbers per GPU.
    known = [job for job in shown if job.n_gpus is not None or uses_gpus(job.tres)]
    remarks = []
    if missing := len(jobs) - len(shown):
        remarks.append(
            f"{counted(missing, 'job')} left out: Slurm's accounting does not contain their requests yet"
        )
    if missing := len(shown) - len(known):
        remarks.append(f"{counted(missing, 'job')} left out: Slurm does not account for their GPUs")
    return known, remarks


def judge_past(compiled: Mapping[str, Plain], jobs: Iterable[PastJob], since_s: int) -> PolicyReplay:
    """Judge every submission since `since_s`; earlier jobs only fill the queue."""
    clock = _Clock()
    script = PolicyScript(build_bundle(compiled), now=clock)
    set_by_rules = {name for rule in _tables(compiled["rules"]) for name in _partitions_set_by(rule)}
    owners = _tables(_table(compiled.get("lending")).get("owners"))
    loans, own = ({str(owner[key]) for owner in owners} for key in ("lend_in", "qos"))
    queue, result = _Queue(script), PolicyReplay(loans=frozenset(loans))
    for submission in _submissions(jobs):
        first = submission[0]
        clock.now_s = first.submit_s
        queue.advance_to(first.submit_s)
        if first.submit_s < since_s:
            queue.add(submission, "", first.qos, first.partition)
            continue
        description = _description(submission)
        if owners and first.qos not in loans:
            description = {
                **description,
                "qos": None,
                "default_qos": _NORMAL if first.qos in own else first.qos,
            }
        verdict = script.submit(description, _partitions({*first.partition.split(","), *set_by_rules}))
        qos = str(verdict.desc.get("qos") or description.get("default_qos") or first.qos)
        result.errors += [
            text for level, text in verdict.log if level == "error" and text not in result.errors
        ]
        rules = dict.fromkeys(name for line in verdict.messages if (name := _rule_in(line)) is not None)
        partition = str(verdict.desc.get("partition") or first.partition)
        made = tuple(change for change in verdict.changes if change.is_made)
        result.judgements.append(
            Judgement(submission, verdict.accepted, tuple(rules), verdict.messages, qos, partition, made)
        )
        if verdict.accepted:
            queue.add(submission, str(verdict.desc.get("admin_comment") or ""), qos, partition)
    return result


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0

    def __call__(self) -> int:
        return self.now_s


class _Queue:
    """A simulated slurm.jobs table, in which jobs start and end as recorded."""

    def __init__(self, script: PolicyScript) -> None:
        self._script = script
        # A heap of (time, job ID, start or end).
        self._events: list[tuple[int, int, str]] = []
        self._jobs: dict[int, tuple[PastJob, str]] = {}
        self._changed: dict[int, Mapping[str, Any] | None] = {}

    def add(self, submission: Sequence[PastJob], admin_comment: str, qos: str, partition: str) -> None:
        """Add the jobs of a submission as pending in a QOS and a partition."""
        for recorded in submission:
            job = replace(recorded, qos=qos, partition=partition)
            self._jobs[job.job_id] = job, admin_comment
            self._changed[job.job_id] = _record(job, 0, admin_comment)
            if job.start_s is not None:
                heapq.heappush(self._events, (job.start_s, job.job_id, "start"))
            if job.end_s is not None:
                heapq.heappush(self._events, (job.end_s, job.job_id, "end"))

    def advance_to(self, now_s: int) -> None:
        """Apply all events up to `now_s`, and pass the changed jobs to the script."""
        while self._events and self._events[0][0] <= now_s:
            _, job_id, what = heapq.heappop(self._events)
            if job_id not in self._jobs:
                continue
            job, comment = self._jobs[job_id]
            if what == "start":
                self._changed[job_id] = _record(job, 1, comment)
            else:
                self._changed[job_id] = None
                del self._jobs[job_id]
        if self._changed:
            self._script.change_jobs(self._changed)
            self._changed = {}


def merge_requeued(jobs: Iterable[tuple[PastJob, str]]) -> list[PastJob]:
    """Merge runs, each given with its state, into jobs; the run after a requeue continues the job."""
    merged: dict[int, list[tuple[PastJob, str]]] = {}
    for run, state in sorted(jobs, key=lambda pair: pair[0].submit_s):
        before = merged.setdefault(run.job_id, [])
        if before and before[-1][1] in _REQUEUED:
            earlier, _ = before.pop()
            start_s = run.start_s if earlier.start_s is None else earlier.start_s
            before.append((replace(earlier, start_s=start_s, end_s=run.end_s), state))
        else:
            before.append((run, state))
    return [job for pairs in merged.values() for job, _ in pairs]


def _submissions(jobs: Iterable[PastJob]) -> Iterator[tuple[PastJob, ...]]:
    """Yield submissions in order of submit time; all tasks of an array are one submission."""
    arrays: dict[tuple[int, int], list[PastJob]] = {}
    for job in jobs:
        key = (job.job_id, job.submit_s) if job.array_job_id is None else (job.array_job_id, job.submit_s)
        arrays.setdefault(key, []).append(job)
    yield from sorted(map(tuple, arrays.values()), key=lambda tasks: (tasks[0].submit_s, tasks[0].job_id))


def _description(submission: Sequence[PastJob]) -> ScalarFields:
    """Return a job description in which the totals from accounting are spread evenly over the job's nodes."""
    job = submission[0]
    nodes = max(job.n_nodes, 1)
    desc: dict[str, str | int | None] = {
        "user_id": job.uid,
        "user_name": job.user,
        "account": job.account,
        "qos": job.qos,
        "partition": job.partition,
        "script": "#!/bin/sh",
        "comment": "on record",
        "time_limit": INFINITE if job.time_limit_s is None else math.ceil(job.time_limit_s / 60),
        "min_nodes": nodes,
        "tres_per_job": _request(job) or None,
    }
    if (cpus := job.tres.get("cpu")) is not None:
        desc["min_cpus"] = int(cpus)
    if (mib := job.tres.get("mem")) is not None:
        desc["min_mem_per_node"] = math.ceil(mib / nodes)
    if len(submission) > 1 or job.array_job_id is not None:
        desc["array_inx"] = f"0-{len(submission) - 1}"
    return desc


def as_request(tres: Mapping[str, float]) -> str:
    """Return TRES totals as a request for GPUs (with their types where known), shards and MPS."""
    typed = {name: int(n) for name, n in tres.items() if name.startswith(f"{_GPU}:")}
    untyped = int(amount(tres, "gpu")) - sum(typed.values())
    items = [f"{name}:{n}" for name, n in typed.items() if n]
    if untyped > 0:
        items.append(f"{_GPU}:{untyped}")
    items += [f"gres/{name}:{n}" for name in SHARED_GRES if (n := int(amount(tres, name)))]
    return ",".join(items)


def _request(job: PastJob) -> str:
    """Return the GPUs of a job as a request; if its TRES contain none, use the recorded number."""
    requested = as_request(job.tres)
    return f"{_GPU}:{math.ceil(job.n_gpus)}" if not requested and job.n_gpus else requested


def _record(job: PastJob, state: int, admin_comment: str) -> dict[str, Any]:
    total = ",".join(_total(name, amount) for name, amount in job.tres.items())
    return {
        "job_id": job.job_id,
        "user_id": job.uid,
        "user_name": job.user,
        "account": job.account,
        "qos": job.qos,
        "partition": job.partition,
        "job_state": state,
        "min_nodes": max(job.n_nodes, 1),
        "tres_per_job": _request(job) or None,
        "tres_fmt_req_str": total or None,
        "tres_fmt_alloc_str": total if state == 1 and total else None,
        "admin_comment": admin_comment,
        "submit_time": job.submit_s,
        "time_limit": INFINITE if job.time_limit_s is None else math.ceil(job.time_limit_s / 60),
        "array_job_id": job.array_job_id or 0,
    }


def _total(name: str, amount: float) -> str:
    return f"{name}={amount:.0f}{'M' if name == 'mem' else ''}"


def _partitions_set_by(rule: Mapping[str, Any]) -> list[str]:
    tables = (_table(rule.get("over_limit")), _table(_table(rule.get("changes")).get("set")))
    return [name for table in tables if table.get("partition") for name in str(table["partition"]).split(",")]


def _partitions(names: Iterable[str]) -> list[ScalarFields]:
    return [
        {"name": name, "flag_default": 0, "default_time": NO_VAL, "max_time": INFINITE, "max_share": 1}
        for name in names
    ]


def _rule_in(line: str) -> str | None:
    match = _OPENING.match(line)
    return None if match is None else match[1]


def _tables(value: Plain) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _table(value: Plain) -> Mapping[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}
