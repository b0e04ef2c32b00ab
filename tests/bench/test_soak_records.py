"""bench/soak.py distinguishes a job recorded twice from a job ID that slurmctld assigned twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.soak_records import GpuAllocation, RecordError, is_exclusive, record_error, runs_of, true_pct
from lab.options import Gpu
from lab.simgpu.truth import Usage
from lab.truth import GpuShare
from tests.cli.conftest import make_record, make_run

PLACES = {("n1", "GPU-a")}
RUN = make_run(devices=(make_record("GPU-a"),))
FORGOTTEN = make_run(state="PENDING", start_s=None, end_s=None, nodes="", devices=())
"""A job that never started: slurmctld was killed and forgot the job, but accounting has its submission."""


class Client:
    """A replacement for slurm-gpudbd that returns these runs of each job."""

    def __init__(self, *shown: Any) -> None:
        self.shown = shown
        self.asked = 0

    def run(self, job: str) -> Sequence[Any]:
        self.asked += 1
        return self.shown


def test_a_submission_that_slurmctld_forgot_is_no_second_record_of_the_job_with_its_number() -> None:
    client = Client(RUN, FORGOTTEN)
    runs, n_never_begun = runs_of(client, 17, 1, until=float("inf"))
    assert (list(runs), n_never_begun) == ([RUN], 1)
    assert client.asked == 1  # the end of the forgotten job is not awaited
    assert record_error(1, PLACES, runs) is None


def test_a_run_that_slurmctld_lost_is_not_waited_for() -> None:
    forgotten = make_run(state="RUNNING", end_s=None, submit_s=RUN.submit_s - 60, devices=())
    client = Client(forgotten, RUN)
    runs, n_never_begun = runs_of(client, 17, 1, until=float("inf"))
    assert (list(runs), n_never_begun, client.asked) == ([forgotten, RUN], 0, 1)


def test_a_job_that_slurmctld_forgot_once_it_had_begun_is_no_second_record_either() -> None:
    # The node of the job shipped a record; Slurm's accounting has only the submission.
    begun = make_run(state="PENDING", end_s=None, submit_s=RUN.submit_s - 60, devices=(make_record("GPU-b"),))
    places = {("n1", "GPU-a"), ("n1", "GPU-b")}
    assert record_error(1, places, [begun, RUN]) is None
    assert record_error(1, PLACES, [begun, RUN]) is RecordError.TWICE  # it has no timestamp
    assert record_error(1, places, [begun]) is RecordError.LOST  # the only run counts, and it lacks GPU-a


def test_missing_and_duplicate_records_are_found() -> None:
    elsewhere = make_run(devices=(make_record("GPU-a"), make_record("GPU-b")))
    assert record_error(1, PLACES, [RUN, RUN]) is RecordError.TWICE
    assert record_error(2, PLACES, [RUN]) is RecordError.LOST
    assert record_error(1, PLACES, []) is RecordError.LOST
    assert record_error(1, PLACES, [make_run(devices=())]) is RecordError.LOST
    assert record_error(1, PLACES, [elsewhere]) is RecordError.TWICE
    assert record_error(0, set(), []) is None


def share(uuid: str, seconds: float, own_pct: float, by_all_pct: float) -> GpuShare:
    gpu = Gpu("n1", 0, 0, 0, uuid, Path("/dev/nvidia0"))
    return GpuShare(gpu, 0, 100.0, 100.0 + seconds, 0.0, Usage(own_pct, 0.1, by_all_pct, 0.1, 1))


def test_on_an_exclusive_gpu_all_activity_is_the_job_s() -> None:
    alone, shared = share("GPU-a", 30, 60, 70), share("GPU-b", 10, 20, 90)
    allocations = {
        "GPU-a": [GpuAllocation(17, 100, 130), GpuAllocation(18, 50, 100), GpuAllocation(19, 130, 140)],
        "GPU-b": [GpuAllocation(17, 100, 110), GpuAllocation(18, 50, 101)],
    }
    assert [is_exclusive(17, one, allocations) for one in (alone, shared)] == [True, False]
    assert true_pct([alone, shared], [True, False]) == pytest.approx((30 * 70 + 10 * 20) / 40)
    assert true_pct([], []) is None
