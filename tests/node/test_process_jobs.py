"""The job of a process is found, and no trick of its owner assigns it to another user's job."""

import os
from pathlib import Path

import pytest

from slurm_gpu.node.process import process_jobs as processjobs
from slurm_gpu.node.process.cgroup import JobOwner
from slurm_gpu.node.process.process_jobs import ProcessJobs
from tests.node.fakeproc import FakeProc

SLURM = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"
NO_JOB = "0::/user.slice/user-1001.slice"


class Proc:
    """A /proc on disk and a clock that a test advances."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 0.0
        self._fake = FakeProc(root)
        self.jobs = ProcessJobs(root, lambda: self.now_s)

    def process(
        self, pid: int, cgroup: str, environ: bytes = b"", *, started: int = 100, uid: int = 1001
    ) -> None:
        self._fake.process(pid, cgroup=cgroup, environ=environ, started=started, uid=uid, euid=0)
        self.now_s += 1

    def end(self, pid: int) -> None:
        self._fake.end(pid)
        self.now_s += 1


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_job_without_a_hook_is_found_by_the_sluid_of_its_cgroup(tmp_path: Path) -> None:
    FakeProc(tmp_path).process(5, cgroup="0::/system.slice/slurmstepd.scope/s4BS/step_batch/user/task_0\n")
    jobs = ProcessJobs(tmp_path, lambda: 0.0, {"s4BS": 4}.get)
    assert jobs.job_of(5, {4: JobOwner(1001)}) == 4


def test_the_environment_counts_only_for_the_job_s_own_user(proc: Proc) -> None:
    proc.process(5, NO_JOB, b"SLURM_JOB_ID=12\0")
    assert proc.jobs.job_of(5, {12: JobOwner(1002)}) is None
    assert proc.jobs.job_of(5, {13: JobOwner(1001)}) is None
    assert proc.jobs.job_of(5, {12: JobOwner(None)}) is None
    assert proc.jobs.job_of(5, {12: JobOwner(1001)}) == 12


def test_a_setuid_program_of_root_belongs_to_its_real_user(proc: Proc) -> None:
    proc.process(5, NO_JOB, b"SLURM_JOB_ID=12\0", uid=1002)  # its effective uid is 0
    assert proc.jobs.job_of(5, {12: JobOwner(0)}) is None


def test_a_cgroup_is_not_overruled_by_an_environment(proc: Proc) -> None:
    proc.process(5, SLURM.format(4), b"SLURM_JOB_ID=12\0")
    jobs = {4: JobOwner(1001), 12: JobOwner(1001)}
    assert proc.jobs.job_of(5, jobs) == 4
    proc.process(6, SLURM.format(99), b"SLURM_JOB_ID=12\0")
    assert proc.jobs.job_of(6, jobs) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_mps_server_belongs_to_a_job_only_by_its_cgroup(proc: Proc, tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    server.touch()
    for pid, cgroup in ((5, NO_JOB), (6, SLURM.format(12))):
        proc.process(pid, cgroup, b"SLURM_JOB_ID=12\0")  # as a prolog would leave it
        (proc.root / str(pid) / "exe").symlink_to(server)
    jobs = {12: JobOwner(1001)}
    assert [proc.jobs.job_of(pid, jobs) for pid in (5, 6)] == [None, 12]
    os.chown(server, 1001, 1001)
    proc.now_s += 10
    assert proc.jobs.job_of(5, jobs) == 12  # the user's own program with this name


def test_an_exited_process_is_remembered_and_a_later_one_is_another(proc: Proc) -> None:
    jobs = {4: JobOwner(None), 5: JobOwner(None)}
    proc.process(5, SLURM.format(4))
    assert proc.jobs.job_of(5, jobs) == 4
    proc.end(5)
    assert proc.jobs.job_of(5, jobs) == 4  # the driver still reports its activity
    proc.process(5, SLURM.format(5), started=200)
    assert proc.jobs.job_of(5, jobs) == 5
    assert proc.jobs.job_of(6, jobs) is None


def test_the_last_activity_of_a_process_counts_after_its_job_was_closed(proc: Proc) -> None:
    proc.process(5, SLURM.format(4))
    proc.jobs.look_up([5], {4: JobOwner(None)})
    proc.end(5)
    assert proc.jobs.job_of(5, {}) == 4


def test_a_process_is_read_again_until_it_has_a_job(proc: Proc) -> None:
    proc.process(5, NO_JOB)
    assert proc.jobs.job_of(5, {4: JobOwner(1001)}) is None
    proc.process(5, SLURM.format(4))  # adopted by the job, as pam_slurm_adopt does
    proc.now_s += 10
    assert proc.jobs.job_of(5, {4: JobOwner(1001)}) == 4


def test_a_process_that_exits_between_two_reads_has_no_job(proc: Proc) -> None:
    proc.process(5, SLURM.format(4))
    (proc.root / "5" / "cgroup").unlink()
    assert proc.jobs.origin(5) is None
    proc.process(6, SLURM.format(4))
    (proc.root / "6" / "stat").write_text("")
    assert proc.jobs.origin(6) is None


def test_a_huge_environment_is_read_only_in_part(proc: Proc) -> None:
    proc.process(5, NO_JOB, b"X=" + b"y" * (3 << 20) + b"\0SLURM_JOB_ID=12\0")
    assert proc.jobs.job_of(5, {12: JobOwner(1001)}) is None


def test_an_environment_that_hangs_affects_only_its_owner(
    proc: Proc, caplog: pytest.LogCaptureFixture
) -> None:
    """Test an environ that blocks every reader, because its pages are in a file system of its owner."""
    proc.process(5, NO_JOB)
    (proc.root / "5" / "environ").unlink()
    os.mkfifo(proc.root / "5" / "environ")
    proc.process(6, NO_JOB, b"SLURM_JOB_ID=12\0")
    proc.process(7, NO_JOB, b"SLURM_JOB_ID=13\0", uid=1002)
    jobs = {12: JobOwner(1001), 13: JobOwner(1002)}
    assert [proc.jobs.job_of(pid, jobs) for pid in (5, 6, 7)] == [None, None, 13]
    assert [record.args for record in caplog.records] == [(1001,)]
    os.close(os.open(proc.root / "5" / "environ", os.O_WRONLY))  # release the thread


def test_on_a_shared_gpu_unattributable_processes_differ_from_those_without_a_job(proc: Proc) -> None:
    jobs = {4: JobOwner(1001), 5: JobOwner(1001), 6: JobOwner(1002)}
    proc.process(1, SLURM.format(4))
    proc.process(2, SLURM.format(99))  # of a job without this GPU
    proc.process(3, NO_JOB, uid=1002)  # for example a container that a daemon started for job 6
    proc.process(7, NO_JOB, uid=1001)
    proc.process(8, NO_JOB, uid=1003)
    proc.process(9, NO_JOB, uid=107)
    allocated = [4, 5, 6]
    owners = {pid: proc.jobs.owner_of(pid, jobs, allocated) for pid in (1, 2, 3, 7, 8, 9, 10)}
    none = processjobs.NO_JOB
    assert owners == {1: 4, 2: none, 3: 6, 7: None, 8: none, 9: none, 10: None}
    assert proc.jobs.owner_of(7, jobs, [5, 6]) == 5
    proc.end(3)
    assert proc.jobs.owner_of(3, jobs, allocated) == 6


def test_memory_of_processes_is_bounded(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.node.process.process_jobs._REMEMBERED", 3)
    jobs = {4: JobOwner(None)}
    for pid in range(1, 6):
        proc.process(pid, SLURM.format(4))
        assert proc.jobs.job_of(pid, jobs) == 4
        proc.end(pid)
    assert [proc.jobs.job_of(pid, jobs) for pid in range(1, 6)] == [None, None, 4, 4, 4]


def test_a_real_process_has_its_user_and_its_start() -> None:
    origin = ProcessJobs().origin(os.getpid())
    assert origin is not None
    assert origin.uid == os.getuid()
    assert int(origin.started) > 0
