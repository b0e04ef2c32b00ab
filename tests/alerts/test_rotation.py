"""Jobs with high scores are diagnosed first, diagnosed jobs wait, and every job is diagnosed eventually."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.alerts.rotation import JudgingRotation, RotationIntervals


def test_the_highest_scores_come_first_up_to_the_limit():
    rotation = JudgingRotation(RotationIntervals(at_once=2))
    assert rotation.next(0.0, {1: 1.5, 2: 9.0, 3: 4.0, 4: 0.2}) == [2, 3]
    assert rotation.next(5.0, {1: 1.5, 2: 9.0, 3: 4.0, 4: 0.2}) == []
    rotation.judged(2, 10.0, found=False, settled=True)
    assert rotation.next(10.0, {1: 1.5, 2: 9.0, 3: 4.0, 4: 0.2}) == [1]


def test_a_job_with_a_constant_high_score_that_is_healthy_is_diagnosed_ever_more_rarely():
    rotation, begins = JudgingRotation(), []
    for second in range(0, 7200, 5):
        for job in rotation.next(float(second), {1: 3.0}):
            begins.append(second)
            rotation.judged(job, float(second), found=False, settled=True)
    gaps = [b - a for a, b in pairwise(begins)]
    assert gaps[:8] == [30] * 8
    assert max(gaps) == gaps[-1] == 900
    assert gaps == sorted(gaps)


def test_a_much_higher_score_than_at_the_last_diagnosis_does_not_wait():
    rotation = JudgingRotation()
    for second in range(0, 3600, 5):
        for job in rotation.next(float(second), {1: 2.0}):
            rotation.judged(job, float(second), found=False, settled=True)
    assert rotation.next(3600.0, {1: 2.5}) == []
    assert rotation.next(3605.0, {1: 6.0}) == [1]


def test_a_change_is_diagnosed_repeatedly_for_a_while_as_faults_emerge_gradually():
    rotation, begins = JudgingRotation(RotationIntervals(calm_s=1e9)), []
    for second in range(0, 400, 5):
        for job in rotation.next(float(second), {1: 0.0 if second < 100 else 8.0}):
            begins.append(second)
            rotation.judged(job, float(second), found=False, settled=True)
    assert [second for second in begins if second >= 100][:8] == [*range(100, 340, 30)]


def test_a_reported_fault_is_diagnosed_each_minute_and_an_unsettled_one_sooner():
    rotation = JudgingRotation(RotationIntervals(calm_s=1e9))
    rotation.next(0.0, {1: 5.0, 2: 5.0})
    rotation.judged(1, 0.0, found=True, settled=True)
    rotation.judged(2, 0.0, found=False, settled=False)
    seen = [
        (second, rotation.next(float(second), {1: 0.0, 2: 0.0}, found={1, 2})) for second in range(5, 65, 5)
    ]
    assert [(second, jobs) for second, jobs in seen if jobs] == [(15, [2]), (60, [1])]


def test_jobs_with_low_scores_are_diagnosed_one_by_one_when_no_other_is_due():
    rotation, judged = JudgingRotation(), []
    for second in range(0, 1800, 5):
        for job in rotation.next(float(second), dict.fromkeys(range(10), 0.0)):
            judged.append(job)
            rotation.judged(job, float(second), found=False, settled=True)
    assert judged == [*range(10)] * 2


def test_wanted_jobs_are_diagnosed_every_ten_minutes():
    rotation, begins = JudgingRotation(RotationIntervals(calm_s=1e9)), []
    for second in range(0, 1900, 5):
        for job in rotation.next(float(second), {1: 0.0}, wanted={1}):
            begins.append(second)
            rotation.judged(job, float(second), found=False, settled=True)
    assert begins == [0, 600, 1200, 1800]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 20), st.floats(0, 50), max_size=20), st.booleans(), st.booleans()
        ),
        max_size=40,
    )
)
def test_the_limit_holds_and_no_job_is_diagnosed_twice_at_once(polls):
    rotation = JudgingRotation()
    for number, (scores, found, settled) in enumerate(polls):
        begins = rotation.next(number * 5.0, scores)
        assert len(set(begins)) == len(begins)
        assert set(begins) <= set(scores)
        assert set(begins) <= set(rotation.going)
        assert len(rotation.going) <= rotation.pace.at_once
        for job in list(rotation.going)[: len(rotation.going) // 2]:
            rotation.judged(job, number * 5.0, found=found, settled=settled)
