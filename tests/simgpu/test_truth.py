"""The truth for comparison with records is a mean over an interval, in which absence counts as 0."""

import pytest

from lab.simgpu.load import USUAL, Activity, Point
from lab.simgpu.truth import ProcessTruth, job_of_environment, load, usage

T = 1_800_000_000


def process(*vertices, job_id=7, restart=0, uuid="GPU-a", pid=100, end=None, activity=USUAL):
    return ProcessTruth(
        job_id=job_id,
        restart=restart,
        node="n1",
        uuid=uuid,
        memory_mib=40_000,
        pid=pid,
        points=tuple(Point(round((T + after) * 1e9), util, memory) for after, util, memory in vertices),
        end_ns=None if end is None else round((T + end) * 1e9),
        activity=activity,
    )


def test_time_outside_the_schedule_counts_as_zero():
    found = usage([process((10, 80, 4000), (20, 80, 4000))], job_id=7, uuid="GPU-a", start_s=T, end_s=T + 40)
    assert (found.util_pct, found.mem_used_frac) == (pytest.approx(20), pytest.approx(0.025))
    assert found.processes == 1


def test_an_allocated_gpu_without_processes_is_zero():
    found = usage([process((0, 80, 4000), (20, 80, 4000))], job_id=7, uuid="GPU-b", start_s=T, end_s=T + 20)
    assert (found.util_pct, found.mem_used_frac, found.device_util_pct, found.processes) == (0.0, 0.0, 0.0, 0)


def test_sharers_get_their_share_and_the_device_its_sum():
    both = [process((0, 90, 4000), (20, 90, 4000)), process((0, 60, 2000), (20, 60, 2000), job_id=8, pid=101)]
    mine = usage(both, job_id=7, uuid="GPU-a", start_s=T, end_s=T + 20)
    other = usage(both, job_id=8, uuid="GPU-a", start_s=T, end_s=T + 20)
    assert (mine.util_pct, other.util_pct) == (pytest.approx(60), pytest.approx(40))
    assert (mine.mem_used_frac, other.mem_used_frac) == (pytest.approx(0.1), pytest.approx(0.05))
    assert mine.device_util_pct == pytest.approx(100)
    assert mine.device_mem_used_frac == pytest.approx(0.15)


def test_an_early_end_cuts_the_schedule():
    ended = process((0, 80, 4000), (100, 80, 4000), end=10)
    assert usage([ended], job_id=7, uuid="GPU-a", start_s=T, end_s=T + 20).util_pct == pytest.approx(40)
    killed = process((0, 80, 4000), (100, 80, 4000))
    assert usage([killed], job_id=7, uuid="GPU-a", start_s=T, end_s=T + 20).util_pct == pytest.approx(80)
    cut = killed.killed_at(T + 10.0)
    assert usage([cut], job_id=7, uuid="GPU-a", start_s=T, end_s=T + 20).util_pct == pytest.approx(40)
    assert ended.killed_at(T + 15.0) == ended


def test_gpm_values_are_weighted_by_each_process_s_share():
    both = [
        process((0, 90, 0), (20, 90, 0), activity=Activity(1, 0.5, 0.5, 0)),
        process((0, 60, 0), (20, 60, 0), job_id=8, pid=101, activity=Activity(0.5, 0, 0, 1)),
    ]
    found = usage(both, job_id=7, uuid="GPU-a", start_s=T, end_s=T + 40)
    assert found.activity == pytest.approx((0.3, 0.15, 0.15, 0))
    assert found.device_activity == pytest.approx((0.4, 0.15, 0.15, 0.2))


def test_runs_of_a_requeued_job_are_distinguished():
    runs = [process((0, 80, 0), (10, 80, 0)), process((10, 40, 0), (20, 40, 0), restart=1)]
    second = usage(runs, job_id=7, restart=1, uuid="GPU-a", start_s=T, end_s=T + 20)
    assert second.util_pct == pytest.approx(20)
    assert usage(runs, job_id=7, uuid="GPU-a", start_s=T, end_s=T + 20).util_pct == pytest.approx(60)


def test_truth_files_are_read_back_and_foreign_files_ignored(tmp_path):
    first, second = process((0, 80, 0), (10, 80, 0)), process((0, 1, 2), (3, 4, 5), uuid="GPU-b", end=2)
    first.write(tmp_path)
    second.write(tmp_path)
    second.write(tmp_path)
    (tmp_path / "7.n1").write_text("prolog 1 2 3\n")
    assert sorted(load(tmp_path), key=lambda found: found.uuid) == [first, second]


def test_an_empty_interval_is_refused():
    with pytest.raises(ValueError, match="must end after it starts"):
        usage([], job_id=1, uuid="x", start_s=5, end_s=5)


def test_the_job_is_read_from_slurm_s_environment():
    assert job_of_environment({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"}) == (12, 2)
    assert job_of_environment({"SLURM_JOB_ID": "12"}) == (12, 0)
    assert job_of_environment({}) == (None, 0)
