"""A planner's history of jobs, derived only from views."""

from __future__ import annotations

import pytest

from slurm_gpu.colocation.planner import Member, PlannerGpu, PlannerView
from slurm_gpu.colocation.planners.history import StartHistory


def view(now_s: float, running: list[Member], waiting: list[Member]) -> PlannerView:
    return PlannerView(now_s, tuple(waiting), (PlannerGpu(tuple(running)),))


SLOW, FAST, OTHER = (Member(job, 0, 100.0) for job in range(3))


def after(member: Member, done_s: float) -> Member:
    return Member(member.job, 0, 100.0 - done_s, done_s)


def test_a_job_that_took_longer_than_alone_was_slowed_down() -> None:
    history = StartHistory()
    history.update(view(0.0, [], [SLOW, FAST, OTHER]))
    history.start(0.0, [SLOW, FAST], still_wait=True)
    history.update(view(101.0, [after(SLOW, 90.0)], [OTHER]))
    assert (history.ended, history.slowed) == (1, 0)
    assert history.elapsed_s(view(101.0, [after(SLOW, 90.0)], [OTHER])) == [[101.0]]
    history.update(view(111.0, [], [OTHER]))
    assert (history.ended, history.slowed) == (2, 1)


def test_a_job_that_ended_unobserved_is_not_counted() -> None:
    history = StartHistory()
    history.update(view(0.0, [], [SLOW]))
    history.start(0.0, [SLOW], still_wait=False)
    history.update(view(5000.0, [], [OTHER]))
    assert (history.ended, history.slowed) == (0, 0)


def test_a_job_that_ran_before_the_first_view_counts_as_not_slowed_down() -> None:
    history = StartHistory()
    seen = view(500.0, [after(SLOW, 60.0)], [OTHER])
    history.update(seen)
    assert history.elapsed_s(seen) == [[pytest.approx(60.0)]]


def test_a_job_that_still_waits_after_its_start_has_not_ended() -> None:
    history = StartHistory()
    history.update(view(0.0, [], [SLOW, FAST]))
    history.start(0.0, [SLOW, FAST], still_wait=True)
    history.update(view(500.0, [FAST], [SLOW]))
    assert (history.ended, history.slowed) == (0, 0)
