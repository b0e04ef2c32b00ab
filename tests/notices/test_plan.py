"""Each alert is sent once, and never more often than the limit allows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.notices.finding import KINDS, WARNING, JobFinding
from slurm_gpu.notices.ledger import DAY_S, Delivery, DeliveryState, Ledger, Notice
from slurm_gpu.notices.plan import Draft, NoticeDecision, channels_for, plan
from slurm_gpu.notices.settings import Mail, Settings, Webhook

from .findings import NOW_S, make_finding, make_job

BY_MAIL = Settings(mode="send", max_per_user_per_day=2, mail=Mail(sender="a@b.edu", to="{user}@b.edu"))
BY_WEBHOOK = Settings(mode="send", webhook=Webhook(url="https://x.edu/"))


def note(
    ledger: Ledger, drafts: list[Draft], now_s: float, state: DeliveryState = DeliveryState.SENT
) -> None:
    """Record drafts as slurm-gpuctld does."""
    for number, draft in enumerate(drafts):
        ledger.notices.append(
            Notice(
                id=f"{now_s}-{number}",
                user=draft.user,
                kind=draft.kind,
                stage=draft.stage,
                runs={one.job.run: one.since_s for one in draft.findings},
                created_s=now_s,
                deliveries={name: Delivery(state=state, at_s=now_s) for name in draft.channels},
            )
        )


def verdicts(findings: list[JobFinding], ledger: Ledger, now_s: float = NOW_S) -> list[NoticeDecision]:
    return [one.verdict for one in plan(now_s, findings, ledger, BY_MAIL)[0]]


def test_all_jobs_of_one_kind_are_one_message_to_their_owner() -> None:
    findings = [make_finding(1), make_finding(2), make_finding(3, "bob"), make_finding(4, kind="xid")]
    _, drafts = plan(NOW_S, findings, Ledger(), BY_MAIL)
    drafted = [(one.user, one.kind, [it.job.run.job_id for it in one.findings]) for one in drafts]
    assert drafted == [("alice", "xid", [4]), ("alice", "never_used", [1, 2]), ("bob", "never_used", [3])]


def test_one_alert_is_sent_once() -> None:
    ledger, findings = Ledger(), [make_finding()]
    note(ledger, plan(NOW_S, findings, ledger, BY_MAIL)[1], NOW_S)
    assert verdicts(findings, ledger) == [NoticeDecision.SENT]
    assert verdicts(findings, ledger, NOW_S + 30 * DAY_S) == [NoticeDecision.SENT]


def test_a_requeued_job_is_another_run() -> None:
    ledger = Ledger()
    note(ledger, plan(NOW_S, [make_finding()], ledger, BY_MAIL)[1], NOW_S)
    again = make_finding(job=make_job(run=make_job().run._replace(start_s=int(NOW_S))))
    assert verdicts([again], ledger) == [NoticeDecision.DUE]


def test_a_void_notice_may_be_sent_later() -> None:
    ledger = Ledger()
    note(ledger, plan(NOW_S, [make_finding()], ledger, BY_MAIL)[1], NOW_S, DeliveryState.OVER)
    assert verdicts([make_finding()], ledger) == [NoticeDecision.DUE]


def test_over_the_limit_a_notice_is_sent_a_day_later() -> None:
    ledger = Ledger()
    kinds = ["never_used", "partly_unused", "throttled"]
    findings = [make_finding(number, kind=kind) for number, kind in enumerate(kinds)]
    note(ledger, plan(NOW_S, findings, ledger, BY_MAIL)[1], NOW_S)
    outcomes, drafts = plan(NOW_S + 60, findings, ledger, BY_MAIL)
    assert [one.verdict for one in outcomes] == [
        NoticeDecision.SENT,
        NoticeDecision.SENT,
        NoticeDecision.LIMIT,
    ]
    assert (drafts, outcomes[2].free_s) == ([], NOW_S + DAY_S)
    assert verdicts(findings, ledger, NOW_S + DAY_S)[2] is NoticeDecision.DUE


def test_a_warning_precedes_less_important_notices() -> None:
    one_left = replace(BY_MAIL, max_per_user_per_day=1)
    findings = [make_finding(1, kind="throttled"), make_finding(2, kind=WARNING)]
    _, drafts = plan(NOW_S, findings, Ledger(), one_left)
    assert [one.kind for one in drafts] == [WARNING]


def test_too_soon_exempt_or_out_of_reach() -> None:
    settings = replace(BY_MAIL, exempt_users=frozenset({"root"}))
    findings = [
        make_finding(1, due_s=NOW_S + 1),
        make_finding(2, "root"),
        make_finding(3, "eve@evil.example,bob"),
        make_finding(4, "-oQ/tmp"),
    ]
    outcomes, drafts = plan(NOW_S, findings, Ledger(), settings)
    assert [one.verdict for one in outcomes] == [
        NoticeDecision.EARLY,
        NoticeDecision.EXEMPT,
        NoticeDecision.NO_CHANNEL,
        NoticeDecision.NO_CHANNEL,
    ]
    assert drafts == []
    assert channels_for("eve@evil.example,bob", BY_WEBHOOK) == ("webhook",)


FINDINGS = st.lists(
    st.builds(
        lambda job_id, **values: make_finding(job_id, "alice" if job_id % 2 else "bob", **values),
        st.integers(1, 6),
        kind=st.sampled_from(KINDS),
        stage=st.integers(0, 1),
        due_s=st.floats(NOW_S - 10 * DAY_S, NOW_S + 10 * DAY_S),
    ),
    max_size=8,
)
POLLS = st.lists(
    st.tuples(st.floats(0, DAY_S), FINDINGS, st.sampled_from([*DeliveryState])), min_size=1, max_size=12
)


@given(polls=POLLS, limit=st.integers(1, 3))
def test_no_notice_is_sent_twice_too_soon_or_more_often_than_the_limit(
    polls: list[tuple[float, list[JobFinding], DeliveryState]], limit: int
) -> None:
    ledger, now_s, rules = Ledger(), NOW_S, replace(BY_MAIL, max_per_user_per_day=limit)
    sent: list[tuple[float, Draft]] = []
    for after_s, findings, state in polls:
        now_s += after_s
        outcomes, drafts = plan(now_s, findings, ledger, rules)
        assert len(outcomes) == len(findings)
        assert all(one.due_s <= now_s for draft in drafts for one in draft.findings)
        assert all(one.job.user == draft.user for draft in drafts for one in draft.findings)
        note(ledger, drafts, now_s, state)
        if state is not DeliveryState.OVER:
            sent += [(now_s, draft) for draft in drafts]
    things = [
        thing
        for _, draft in sent
        for thing in {(one.job.run, draft.kind, draft.stage) for one in draft.findings}
    ]
    assert len(things) == len(set(things))
    for at_s, draft in sent:
        of_day = [1 for other_s, other in sent if other.user == draft.user and 0 <= at_s - other_s < DAY_S]
        assert len(of_day) <= limit
