"""Decide from a poll, without side effects, which notices to send and which jobs may be ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from slurm_gpu.alerts.alert import Alert, AlertKind
from slurm_gpu.controller.notices.poll import ClusterPoll, findings_of
from slurm_gpu.controller.notices.status import OutlookEntry
from slurm_gpu.notices.finding import ENDED, WARNING, JobFinding, NoticedJob
from slurm_gpu.notices.idle_rule import IdleJobStage, IdleRule, IdleStage, standings
from slurm_gpu.notices.ledger import DAY_S, EndState, Ledger
from slurm_gpu.notices.plan import Draft, FindingOutcome, plan
from slurm_gpu.notices.sending import Message
from slurm_gpu.notices.settings import Settings
from slurm_gpu.notices.texts import NoticeContext, Template, moment, render
from slurm_gpu.notices.wording import fate_of_ended, fate_of_warned, of_end, of_outcome, of_standing
from slurm_gpu.policy.language.model import Mode
from slurm_gpu.policy.lua.installed import CancelIdleInForce
from slurm_gpu.wire.answers.cluster import ClusterJob

# The type of a function that returns whether `cancel_idle` applies to a job.
Binds = Callable[[ClusterJob], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """The decisions made after one poll."""

    now_s: float
    outcomes: Sequence[FindingOutcome]
    drafts: Sequence[Draft]
    standings: Mapping[int, IdleJobStage]
    """Idle jobs to which the rule applies, whatever its mode, by job ID."""
    rule: CancelIdleInForce | None
    ledger: Ledger

    def may_end(self) -> list[IdleJobStage]:
        """Return the jobs to end: all warnings were sent, and the maximum idle time has passed.

        The list is empty unless the rule is enforced.
        """
        if self.rule is None or self.rule.mode != Mode.ENFORCE:
            return []
        return [one for one in self.standings.values() if one.step is IdleStage.END]

    def about(self, kind: str, stage: int) -> Sequence[JobFinding]:
        """Return the current findings of this kind and stage."""
        return [
            one.finding for one in self.outcomes if one.finding.kind == kind and one.finding.stage == stage
        ]


def judge(
    poll: ClusterPoll,
    alerts: Sequence[Alert],
    settings: Settings,
    rule: CancelIdleInForce | None,
    binds: Binds,
    ledger: Ledger,
    now_s: float,
) -> Judgment:
    """Return the decisions after a poll.

    `alerts` are the alerts derived from the poll. `ledger` contains the earlier notices and the jobs that
    were ended.
    """
    warns = rule is not None and rule.mode != Mode.OBSERVE
    findings, _ = findings_of(poll, alerts, settings, binds if warns else lambda job: False)
    found: Mapping[int, IdleJobStage] = {}
    if rule is not None:
        _, idle = findings_of(poll, alerts, settings, binds)
        ours = {one.run for one in ledger.ended if one.state is not EndState.FAILED}
        idle = [one for one in idle if one.job.user not in settings.exempt_users and one.job.run not in ours]
        found = standings(now_s, idle, IdleRule(warn_s=rule.warn_s, after_s=rule.after_s), ledger)
    warnings = [one.finding for one in found.values()] if warns else []
    outcomes, drafts = plan(now_s, [*warnings, *_ended(ledger, now_s), *findings], ledger, settings)
    return Judgment(now_s=now_s, outcomes=outcomes, drafts=drafts, standings=found, rule=rule, ledger=ledger)


def _ended(ledger: Ledger, now_s: float) -> list[JobFinding]:
    """Return findings for the notices about jobs that were ended within the last day."""
    return [
        JobFinding(
            job=NoticedJob(
                run=one.run,
                id=one.id,
                user=one.user,
                name=one.name,
                account="",
                qos="",
                partition="",
                n_gpus=one.n_gpus,
            ),
            kind=ENDED,
            since_s=one.since_s,
            coverage=1.0,
        )
        for one in ledger.ended
        if one.state is EndState.ENDED and 0 <= now_s - one.at_s < DAY_S
    ]


def message(
    notice_id: str,
    user: str,
    kind: str,
    findings: Sequence[JobFinding],
    judgment: Judgment,
    templates: Mapping[str, Template],
    around: NoticeContext,
) -> Message:
    """Return the message of a notice about the current findings."""
    rule, fate = judgment.rule, ""
    if kind == WARNING and rule is not None:
        end_s = min(one.end_s for one in findings if one.end_s is not None)
        fate = fate_of_warned(rule.action, rule.mode, moment(end_s, around.zone))
    elif kind == ENDED:
        end = judgment.ledger.end_of(findings[0].job.run)
        if end is not None:
            fate = fate_of_ended(end.how, moment(end.at_s, around.zone), end.id)
    why = "" if rule is None else rule.why
    return Message(
        id=notice_id,
        at_s=judgment.now_s,
        cluster=around.cluster,
        user=user,
        kind=kind,
        jobs=tuple(one.job.id for one in findings),
        text=render(templates[kind], user, findings, around, why=why, fate=fate),
    )


def outlook(judgment: Judgment, settings: Settings, zone: ZoneInfo) -> list[OutlookEntry]:
    """Describe each finding and its consequence to operators."""
    rule = judgment.rule
    lines = []
    for outcome in judgment.outcomes:
        finding = outcome.finding
        outcome_text = of_outcome(outcome, zone, sends=settings.sends)
        standing = judgment.standings.get(finding.job.run.job_id)
        if finding.kind == WARNING and rule is not None and standing is not None:
            outcome_text = f"{outcome_text}; {of_standing(standing, rule.action, rule.mode, zone)}"
        elif finding.kind == ENDED and (end := judgment.ledger.end_of(finding.job.run)) is not None:
            outcome_text = f"{of_end(end, zone)}; {outcome_text}"
        elif finding.kind == AlertKind.NEVER_USED and rule is not None and standing is not None:
            outcome_text = f"{outcome_text}; {of_standing(standing, rule.action, rule.mode, zone)}"
        lines.append(
            OutlookEntry(
                job_id=finding.job.run.job_id,
                id=finding.job.id,
                user=finding.job.user,
                kind=finding.kind,
                stage=finding.stage,
                since_s=finding.since_s,
                coverage=finding.coverage,
                outcome=outcome_text,
            )
        )
    return lines
