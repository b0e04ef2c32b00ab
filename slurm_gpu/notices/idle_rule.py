"""When the owner of a job whose GPUs were never used is warned, and when the job is ended: pure functions.

No job is ended unless all warnings surely went out, and the time between the last one and the end is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.notices.finding import WARNING, JobFinding, NoticedJob
from slurm_gpu.notices.ledger import Ledger

COVERAGE = 0.95
"""So much of a job's time must have been seen, by its records and by live values, before it is warned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRule:
    """What the policy in force says."""

    warn_s: tuple[int, ...]
    after_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """A job of which no GPU ever computed, wholly seen."""

    job: NoticedJob
    since_s: float
    coverage: float
    n_devices: int


class IdleStage(StrEnum):
    """Where an idle job stands."""

    WARN = "warn"
    """The next warning is told, or waits for its time."""
    BLOCKED = "blocked"
    """A warning did not go out, or nobody knows whether it did."""
    GRACE = "grace"
    """All warnings went out; its owner has some time left."""
    END = "end"


@dataclass(frozen=True, slots=True)
class IdleStanding:
    """One idle job."""

    finding: JobFinding
    """The next warning, or the last one where all went out."""
    step: IdleStage
    end_s: float
    """Not ended sooner, as things stand."""


def standing(now_s: float, idle: IdleJob, rule: IdleRule, ledger: Ledger) -> IdleStanding:
    """Where a job stands now."""
    run = idle.job.run
    told = [ledger.told(run, WARNING, stage) for stage in range(len(rule.warn_s))]
    # Who was warned has been idle since then, whatever a slurm-gpuctld that began later can tell.
    since_s = min([idle.since_s, *(one.runs[run] for one in told if one is not None)])
    before_s = since_s
    """From when the time up to the next step counts: a warning that went out late puts off what follows."""
    for stage, at_s in enumerate(rule.warn_s):
        left_s = at_s - (rule.warn_s[stage - 1] if stage else 0)
        due_s = before_s + left_s
        notice = told[stage]
        end_s = max(due_s, now_s) + rule.after_s - at_s
        if notice is None:
            return IdleStanding(_warning(idle, stage, since_s, due_s, end_s), IdleStage.WARN, end_s)
        if notice.sent_s is None:
            step = IdleStage.WARN if notice.waits else IdleStage.BLOCKED
            return IdleStanding(_warning(idle, stage, since_s, due_s, end_s), step, end_s)
        before_s = max(due_s, notice.sent_s)
    end_s = before_s + rule.after_s - rule.warn_s[-1]
    last = _warning(idle, len(rule.warn_s) - 1, since_s, before_s, end_s)
    return IdleStanding(last, IdleStage.END if now_s >= end_s else IdleStage.GRACE, end_s)


def _warning(idle: IdleJob, stage: int, since_s: float, due_s: float, end_s: float) -> JobFinding:
    return JobFinding(
        job=idle.job,
        kind=WARNING,
        stage=stage,
        since_s=since_s,
        coverage=idle.coverage,
        n_devices=idle.n_devices,
        end_s=end_s,
        due_s=due_s,
    )


def standings(
    now_s: float, jobs: Sequence[IdleJob], rule: IdleRule, ledger: Ledger
) -> dict[int, IdleStanding]:
    """Of all, by job id."""
    return {idle.job.run.job_id: standing(now_s, idle, rule, ledger) for idle in jobs}
