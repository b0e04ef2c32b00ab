"""Decide when the owner of an idle job is warned and when the job is ended, with pure functions.

A job is ended only if all warnings were certainly sent, and the grace period after the last has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.notices.finding import WARNING, JobFinding, NoticedJob
from slurm_gpu.notices.ledger import Ledger

# A warning requires that records and live values each cover at least this share of the job's time.
COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRule:
    """The idle rule of the policy in force."""

    warn_s: tuple[int, ...]
    after_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """A fully observed job that has used no GPU."""

    job: NoticedJob
    since_s: float
    coverage: float
    n_devices: int


class IdleStage(StrEnum):
    """The stage of an idle job."""

    WARN = "warn"
    """The next warning is being sent, or is not due yet."""
    BLOCKED = "blocked"
    """A warning was not sent, or it is unknown whether it was."""
    GRACE = "grace"
    """All warnings were sent, and the owner still has time to use the GPUs."""
    END = "end"


@dataclass(frozen=True, slots=True)
class IdleJobStage:
    """The stage of one idle job."""

    finding: JobFinding
    """The next warning, or the last warning if all warnings were sent."""
    step: IdleStage
    end_s: float
    """The earliest time at which the job can be ended."""


def standing(now_s: float, idle: IdleJob, rule: IdleRule, ledger: Ledger) -> IdleJobStage:
    """Return a job's current stage."""
    run = idle.job.run
    warnings = [ledger.last_notice(run, WARNING, stage) for stage in range(len(rule.warn_s))]
    # A warned job has been idle since the time in its warning, even if slurm-gpuctld was restarted later.
    since_s = min([idle.since_s, *(one.runs[run] for one in warnings if one is not None)])
    # Each step is due relative to the step before it, so a late warning delays the following steps.
    before_s = since_s
    for stage, at_s in enumerate(rule.warn_s):
        left_s = at_s - (rule.warn_s[stage - 1] if stage else 0)
        due_s = before_s + left_s
        notice = warnings[stage]
        end_s = max(due_s, now_s) + rule.after_s - at_s
        if notice is None:
            return IdleJobStage(_warning(idle, stage, since_s, due_s, end_s), IdleStage.WARN, end_s)
        if notice.sent_s is None:
            step = IdleStage.WARN if notice.waits else IdleStage.BLOCKED
            return IdleJobStage(_warning(idle, stage, since_s, due_s, end_s), step, end_s)
        before_s = max(due_s, notice.sent_s)
    end_s = before_s + rule.after_s - rule.warn_s[-1]
    last = _warning(idle, len(rule.warn_s) - 1, since_s, before_s, end_s)
    return IdleJobStage(last, IdleStage.END if now_s >= end_s else IdleStage.GRACE, end_s)


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
) -> dict[int, IdleJobStage]:
    """Return the stages of all jobs by job ID."""
    return {idle.job.run.job_id: standing(now_s, idle, rule, ledger) for idle in jobs}
