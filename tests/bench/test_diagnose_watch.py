"""bench/diagnose_watch.py watches all its jobs and reports a hang."""

from bench.diagnose_injector import faulty
from bench.diagnose_watch import ReplayedJobs, watched
from slurm_gpu.diagnose.verdict import Cause


def a_hang():
    """Return the first hang of a small job that is recorded in a window."""
    drawn = (faulty(1, Cause.HANG, n) for n in range(60))
    return next(
        case
        for case in drawn
        if not case.timeline and case.running and case.steps is None
        if case.job.n_workers <= 16 and not case.recording.silent and case.recording.hosts
    )


def test_running_jobs_are_watched_and_a_hang_is_reported():
    case = a_hang()
    played = ReplayedJobs({1: case, 2: case})
    watch, _ = watched(played)
    assert watch.shown.watched == 2
    assert {one.verdict.job_id for one in played.stored if one.verdict.cause == Cause.HANG} == {1, 2}
