"""After long outages the database has true records of each job, except for recorded gaps."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.wired import BACKOFF_S, CHECKPOINT_S, PERIOD_S, Merged, Wired, merged

# The duration of the database outage; `make soak` sets it to a day.
HOURS = int(os.environ.get("SLURM_GPU_TEST_HOURS", "6"))


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Return a directory in memory, where flushing takes no time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        yield Path(directory)


def test_hours_without_the_database_cost_nothing(in_memory: Path, gpu: FakeGpu) -> None:
    """Run jobs of seconds or half an hour, up to two hours apart, until the database returns."""
    machine = Wired(in_memory, gpu, interval_s=10.0)
    machine.start()
    machine.run(60)
    machine.database.is_down = True
    begun_s = machine.clock.now_s
    jobs: dict[int, tuple[float, float]] = {}
    while machine.clock.now_s < begun_s + HOURS * 3600:
        job_id = len(jobs) + 1
        jobs[job_id] = (1800.0, 4.0, 12.0)[job_id % 3], 10.0 + job_id
        gpu.work.clear()
        machine.job(job_id, jobs[job_id][0], percent=jobs[job_id][1])
        machine.run(7200 if job_id % 3 == 0 else 100)
    assert machine.database.records == {}
    machine.database.is_down = False
    machine.run(BACKOFF_S)
    assert {record.job_id for record in machine.database.records.values()} == set(jobs)
    for job_id, (seconds, percent) in jobs.items():
        of_job = merged(machine, job_id)
        assert [record.final for record in of_job.records] == [True]
        assert of_job.allocated_s == pytest.approx(seconds, abs=0.01)
        assert of_job.sampled_s == pytest.approx(seconds, abs=0.02)
        assert of_job.util_pct == pytest.approx(percent, abs=0.5)
        assert of_job.energy_j == pytest.approx(100 * seconds, rel=0.01)
    assert machine.spool is not None
    assert machine.spool.queue.waiting_keys() == []
    machine.kill()


def test_a_daemon_killed_repeatedly_while_the_database_is_down(wired: Wired) -> None:
    wired.database.is_down = True
    kills = HOURS + 2
    seconds = 150 * kills
    start_s = wired.begin(7, seconds)
    for _ in range(kills):
        wired.run(130)
        wired.kill()
        wired.clock.advance(3)
        wired.start()
    wired.run_until(start_s + seconds)
    wired.hook("epilog", 7, "0")
    wired.database.is_down = False
    wired.run(BACKOFF_S)
    job = merged(wired, 7)
    assert len(job.records) == kills + 1
    assert [record.final for record in job.records].count(True) == 1
    assert job.doubled == []
    # Each kill costs the time since the last checkpoint and the 3 s until the restart.
    assert seconds - kills * (CHECKPOINT_S + 3.1) <= job.sampled_s <= seconds - kills * 3
    assert job.util_pct == pytest.approx(60, abs=0.5)
    assert job.mem_pct == pytest.approx(25, abs=0.1)


def test_a_reboot_during_a_job_costs_the_time_since_the_last_checkpoint(wired: Wired) -> None:
    wired.begin(7, 100)
    wired.run(60)
    wired.kill()
    wired.clock = FakeClock("boot-2", monotonic_s=30.0)
    wired.clock.offset_s += 1200
    wired.gpus[0].clock = wired.clock
    wired.start()
    wired.run(20)
    # Slurm has requeued the job and runs it again.
    start_s = wired.clock.now_s
    wired.gpus[0].work.append(Work(7, start_s, start_s + 50, 30, GIB))
    wired.hook("prolog", 7, "0", restart=1)
    wired.run_until(start_s + 50)
    wired.hook("epilog", 7, "0", restart=1)
    wired.run(5)
    runs = {
        restart: Merged([r for r in wired.database.of_job(7) if r.restart == restart]) for restart in (0, 1)
    }
    assert 60 - CHECKPOINT_S <= runs[0].allocated_s <= 60.01
    assert runs[0].sampled_s == pytest.approx(runs[0].allocated_s, abs=1.1)
    assert runs[0].util_pct == pytest.approx(60, abs=0.5)
    assert runs[1].allocated_s == pytest.approx(50, abs=0.02)
    assert runs[1].util_pct == pytest.approx(30, abs=0.5)
    assert all(record.final for run in runs.values() for record in run.records)
    assert {(restart, r.boot_id) for restart, run in runs.items() for r in run.records} == {
        (0, "boot-1"),
        (1, "boot-2"),
    }


def test_a_lost_spool_costs_the_records_that_were_not_shipped(wired: Wired, tmp_path: Path) -> None:
    """Test that slurm-gpudbd reports a job from its accounting to a slurm-gpud that lost the job."""
    start_s = wired.begin(7, 2000)
    wired.run(1000)
    wired.kill()
    shutil.rmtree(tmp_path / "spool")
    wired.database.jobs["7"] = {
        "restart": 0,
        "start_s": int(start_s + wired.clock.offset_s),
        "uid": 1001,
        "state": "RUNNING",
        "gpu_index": {"gpu": [0]},
        "granted_mgpu": 1000,
        "age_s": 0.5,
    }
    wired.clock.advance(5)
    wired.start()
    wired.run_until(start_s + 2000)
    wired.database.jobs.clear()
    wired.hook("epilog", 7, "0")
    wired.run(5)
    job = merged(wired, 7)
    assert len(job.records) == 2
    # Records of running jobs are shipped every 300 ± 60 s, and answers with jobs arrive about every 10 s.
    assert 2000 - 360 - 40 <= job.sampled_s <= 1995
    assert job.util_pct == pytest.approx(60, abs=0.5)
    assert job.doubled == []


def test_two_daemons_at_once_are_counted_once(tmp_path: Path, gpu: FakeGpu) -> None:
    """Test two daemons with the same hook files but separate state, as in a container and on its host."""
    one, other = Wired(tmp_path / "one", gpu), Wired(tmp_path / "other", gpu)
    other.database = one.database
    for machine in (one, other):
        machine.start()
        machine.run(1)
    start_s = gpu.clock.now_s
    gpu.work.append(Work(7, start_s, start_s + 40, 60, 10 * GIB))
    for machine in (one, other):
        machine.write_hook("prolog", 7, "0")
    while gpu.clock.now_s < start_s + 40:
        for machine in (one, other):
            machine.run(0.05)
    for machine in (one, other):
        machine.write_hook("epilog", 7, "0")
    for _ in range(100):
        for machine in (one, other):
            machine.run(0.05)
    job = merged(one, 7)
    assert len(one.database.of_job(7)) == 2
    assert len(job.records) == 1
    assert len(job.doubled) == 1
    assert job.allocated_s == pytest.approx(40, abs=0.2)
    assert job.util_pct == pytest.approx(60, abs=0.5)
    for machine in (one, other):
        machine.kill()


def test_a_second_daemon_on_the_same_spool_does_not_start(wired: Wired, tmp_path: Path) -> None:
    second = Wired(tmp_path, wired.gpus[0])
    with pytest.raises(BlockingIOError, match="in use by another"):
        second.start()


def test_a_gpu_swapped_during_a_job_is_a_gap_and_the_next_job_has_the_new_one(
    tmp_path: Path, clock: FakeClock
) -> None:
    old = FakeGpu(clock, "GPU-old", 0)
    machine = Wired(tmp_path, old)
    machine.start()
    machine.begin(7, 1000)
    machine.run(100)
    old.lost = True
    machine.run(50)
    new = FakeGpu(clock, "GPU-new", 0)
    machine.reader.gpus[:] = [new]
    machine.run(50)
    machine.hook("epilog", 7, "0")
    machine.run(20)
    new.work.append(Work(8, clock.now_s, clock.now_s + 30, 90, GIB))
    machine.hook("prolog", 8, "0")
    machine.run(30)
    machine.hook("epilog", 8, "0")
    machine.run(5)
    before, after = merged(machine, 7, "GPU-old"), merged(machine, 8, "GPU-new")
    assert before.allocated_s == pytest.approx(200, abs=0.1)
    assert before.sampled_s == pytest.approx(100, abs=1.5)
    assert before.util_pct == pytest.approx(60, abs=0.5)
    assert after.util_pct == pytest.approx(90, abs=0.5)
    assert {record.device for record in machine.database.records.values()} == {"GPU-old", "GPU-new"}
    assert "gpu_lost" in machine.database.kinds()
    machine.kill()


def test_a_gpu_swapped_while_the_node_was_off_has_no_job_of_the_old_one(wired: Wired) -> None:
    wired.begin(7, 1000)
    wired.run(100)
    wired.kill()
    clock = FakeClock("boot-2", monotonic_s=40.0)
    clock.offset_s += 5000
    wired.clock = clock
    new = FakeGpu(clock, "GPU-new", 0)
    wired.gpus = (new,)
    wired.reader.gpus[:] = [new]
    wired.start()
    wired.job(8, 20, percent=90)
    wired.run(5)
    assert merged(wired, 7).sampled_s == pytest.approx(100, abs=CHECKPOINT_S)
    assert wired.database.of_job(7, "GPU-new") == []
    assert merged(wired, 8, "GPU-new").util_pct == pytest.approx(90, abs=0.5)


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_clock_set_while_the_daemon_is_down_neither_duplicates_nor_loses_time(
    wired: Wired, step_s: float
) -> None:
    start_s = wired.begin(7, 300)
    wired.run(100)
    wired.kill()
    wired.clock.advance(4)
    wired.clock.offset_s += step_s
    wired.start()
    wired.run_until(start_s + 300)
    wired.hook("epilog", 7, "0")
    wired.run(PERIOD_S)
    job = merged(wired, 7)
    assert len(job.records) == 2
    assert job.doubled == []
    assert 300 - CHECKPOINT_S - 4.5 <= job.sampled_s <= 296.1
    assert job.util_pct == pytest.approx(60, abs=0.5)


def test_a_thousand_jobs_that_end_within_a_second_all_have_a_record(tmp_path: Path, clock: FakeClock) -> None:
    gpus = [FakeGpu(clock, f"GPU-{minor}", minor) for minor in range(8)]
    machine = Wired(tmp_path, *gpus)
    machine.start()
    begun = {}
    for job_id in range(1, 1001):
        machine.write_hook("prolog", job_id, str(job_id % 8))
        begun[job_id] = clock.now_s
        clock.advance(0.003)
    machine.run(2)
    posts, ended = machine.database.posts, {}
    for job_id in range(1, 1001):
        machine.write_hook("epilog", job_id, str(job_id % 8))
        ended[job_id] = clock.now_s
        clock.advance(0.001)
    machine.run(10)
    records = {record.job_id: record for record in machine.database.records.values()}
    assert sorted(records) == sorted(begun)
    for job_id, record in records.items():
        assert record.final
        assert record.device == f"GPU-{job_id % 8}"
        assert record.allocated_s == pytest.approx(ended[job_id] - begun[job_id], abs=0.01)
    assert machine.hook_files() == []
    assert machine.database.posts - posts <= 12
    machine.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the spool's directory on a file system of 256 KiB."""
    spool = tmp_path / "spool"
    spool.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(spool)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and the right to mount a tmpfs")
    yield spool
    subprocess.run(["umount", "-l", str(spool)], check=True)


def test_a_disk_full_for_hours_loses_no_job_that_fits_into_memory(small_disk: Path, gpu: FakeGpu) -> None:
    machine = Wired(small_disk.parent, gpu, interval_s=10.0)
    machine.start()
    machine.database.is_down = True
    machine.job(1, 30, percent=11)
    machine.run(20)
    fill(small_disk)
    jobs = HOURS + 5
    for job_id in range(2, jobs + 1):
        gpu.work.clear()
        machine.job(job_id, 4 if job_id % 10 else 3000, percent=10 + job_id)
        machine.run(400)
    machine.database.is_down = False
    machine.run(BACKOFF_S)
    (small_disk / "else").unlink()
    machine.run(20)
    for job_id in range(1, jobs + 1):
        assert merged(machine, job_id).util_pct == pytest.approx(10 + job_id, abs=0.5)
    assert machine.hook_files() == []
    assert "spool_full" not in machine.database.kinds()
    machine.kill()


def fill(disk: Path) -> None:
    """Fill the disk with another file."""
    with (disk / "else").open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
