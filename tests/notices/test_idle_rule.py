"""No job is ended without a warning, even if warnings are late, are not sent, or may not have arrived."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.notices.finding import WARNING
from slurm_gpu.notices.idle_rule import IdleJob, IdleRule, IdleStage, standing
from slurm_gpu.notices.ledger import Delivery, DeliveryState, Ledger, Notice

from .findings import NOW_S, make_job

RULE = IdleRule(warn_s=(1800, 3600), after_s=7200)
JOB = make_job()


def idle(since_s: float) -> IdleJob:
    return IdleJob(job=JOB, since_s=since_s, coverage=1.0, n_devices=2)


def warned(stage: int, at_s: float, since_s: float, *states: DeliveryState) -> Notice:
    channels = dict(zip(("mail", "webhook"), states or (DeliveryState.SENT,), strict=False))
    deliveries = {name: Delivery(state=state, attempts=1, at_s=at_s) for name, state in channels.items()}
    return Notice(
        id=str(stage),
        user="alice",
        kind=WARNING,
        stage=stage,
        runs={JOB.run: since_s},
        created_s=at_s,
        deliveries=deliveries,
    )


def test_the_stages_of_an_idle_job() -> None:
    ledger, steps = Ledger(), []
    for minute in range(0, 130, 10):
        now_s = NOW_S + 60 * minute
        found = standing(now_s, idle(NOW_S), RULE, ledger)
        if found.step is IdleStage.WARN and found.finding.due_s <= now_s:
            steps.append((minute, f"warning {found.finding.stage}"))
            ledger.notices.append(warned(found.finding.stage, now_s, NOW_S))
        elif found.step is IdleStage.END:
            steps.append((minute, "end"))
    assert steps == [(30, "warning 0"), (60, "warning 1"), (120, "end")]


def test_a_late_warning_leaves_the_same_time() -> None:
    ledger = Ledger([warned(0, NOW_S + 1800, NOW_S), warned(1, NOW_S + 7200, NOW_S)])
    found = standing(NOW_S + 7300, idle(NOW_S), RULE, ledger)
    assert (found.step, found.end_s) == (IdleStage.GRACE, NOW_S + 7200 + 3600)


def test_two_warnings_due_at_once_keep_their_distance() -> None:
    found = standing(NOW_S + 90_000, idle(NOW_S), RULE, Ledger())
    assert (found.finding.stage, found.finding.end_s) == (0, NOW_S + 90_000 + 5400)
    ledger = Ledger([warned(0, NOW_S + 90_000, NOW_S)])
    assert standing(NOW_S + 90_001, idle(NOW_S), RULE, ledger).finding.due_s == NOW_S + 90_000 + 1800


def test_a_slurm_gpuctld_that_started_later_continues_from_the_warning() -> None:
    ledger = Ledger([warned(0, NOW_S + 1800, NOW_S), warned(1, NOW_S + 3600, NOW_S)])
    assert standing(NOW_S + 7200, idle(NOW_S + 7000), RULE, ledger).step is IdleStage.END


def test_on_one_of_two_channels_is_enough_and_on_none_is_not() -> None:
    first = warned(0, NOW_S + 1800, NOW_S)
    for states, step in (
        ((DeliveryState.FAILED, DeliveryState.SENT), IdleStage.END),
        ((DeliveryState.FAILED, DeliveryState.UNKNOWN), IdleStage.BLOCKED),
        ((DeliveryState.UNKNOWN,), IdleStage.BLOCKED),
        ((DeliveryState.SENDING,), IdleStage.BLOCKED),
        ((DeliveryState.WAITING,), IdleStage.WARN),
    ):
        ledger = Ledger([first, warned(1, NOW_S + 3600, NOW_S, *states)])
        assert standing(NOW_S + 90_000, idle(NOW_S), RULE, ledger).step is step, states


@given(
    warn_s=st.lists(st.integers(5, 100), min_size=1, max_size=4, unique=True).map(sorted),
    grace_s=st.integers(1, 100),
    polls=st.lists(st.tuples(st.floats(0, 90), st.sampled_from([*DeliveryState])), max_size=30),
    since_s=st.lists(st.floats(0, 100), min_size=1, max_size=3),
)
def test_every_end_has_all_warnings_before_it_and_the_whole_time_after_the_last(
    warn_s: list[int], grace_s: int, polls: list[tuple[float, DeliveryState]], since_s: list[float]
) -> None:
    rule = IdleRule(warn_s=tuple(warn_s), after_s=warn_s[-1] + grace_s)
    ledger, now_s = Ledger(), NOW_S + 100
    for at, (after_s, state) in enumerate(polls):
        now_s += after_s
        found = standing(now_s, idle(NOW_S + since_s[at % len(since_s)]), rule, ledger)
        if found.step is IdleStage.END:
            sent = [ledger.last_notice(JOB.run, WARNING, stage) for stage in range(len(warn_s))]
            times = [None if one is None else one.sent_s for one in sent]
            assert all(one is not None for one in times)
            assert now_s - max(one for one in times if one is not None) >= grace_s - 1e-6
            assert now_s - NOW_S >= rule.after_s - 1e-6
            assert times == sorted(times)  # type: ignore[type-var]
        elif found.step is IdleStage.WARN and found.finding.due_s <= now_s:
            assert found.end_s >= now_s + grace_s - 1e-6
            ledger.notices.append(warned(found.finding.stage, now_s, found.finding.since_s, state))
