"""A process leads to its job through its cgroup, and without cgroups through its environment."""

import os
from pathlib import Path

import pytest

from slurm_gpu.node.cgroup import JobOwner, ProcessJobs, job_in_cgroup, job_in_environment


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("9:freezer:/slurm_n1/uid_1001/job_4/step_batch\n1:name=systemd:/\n", 4),
        ("9:freezer:/slurm/uid_1001/job_41/step_0/task_3\n", 41),
        ("9:memory:/docker/abc/slurm_n1/uid_1001/job_4/step_0\n", 4),
        ("0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_0\n", 4),
        ("0::/system.slice/n1_slurmstepd.scope/job_4/step_extern/user/task_special\n", 4),
        ("0::/system.slice/slurmstepd.scope/s1A2B3C4D5E6F7/step_0/user/task_0\n", 77),
        ("0::/system.slice/slurmstepd.scope/job_s1A2B3C4D5E6F7/step_0/user/task_0\n", 77),
        ("0::/user.slice/user-1001.slice/job_4/x\n", None),
        ("0::/system.slice/slurmstepd.scope/system\n", None),
        ("0::/user.slice/user-1001.slice/user@1001.service/slurm/job_4/x\n", None),
        ("0::/user.slice/user-1001.slice/slurmstepd.scope/job_4/x\n", None),
        ("1:name=systemd:/slurm/uid_1001/job_4/step_0\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_paths_of_all_versions(text: str, job: int | None) -> None:
    assert job_in_cgroup(text, {"s1A2B3C4D5E6F7": 77}) == job


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (b"A=1\0SLURM_JOB_ID=12\0", 12),
        (b"XSLURM_JOB_ID=12\0", None),
        (b"SLURM_JOB_ID=1x\0", None),
        (b"SLURM_JOB_ID=" + b"9" * 100, None),
        (b"", None),
    ],
)
def test_environments(environment: bytes, job: int | None) -> None:
    assert job_in_environment(environment) == job


def process(proc: Path, pid: int, cgroup: str, environ: bytes, started: int = 100) -> None:
    directory = proc / str(pid)
    directory.mkdir(exist_ok=True)
    (directory / "stat").write_text(f"{pid} (a) b) S " + " ".join(["0"] * 18) + f" {started} 0\n")
    (directory / "cgroup").write_text(cgroup)
    (directory / "environ").write_bytes(environ)


def test_the_environment_counts_only_for_the_job_s_own_user(tmp_path: Path) -> None:
    process(tmp_path, 5, "0::/\n", b"SLURM_JOB_ID=12\0")
    assert ProcessJobs(tmp_path).job_of(5, {12: JobOwner(os.getuid())}) == 12
    assert ProcessJobs(tmp_path).job_of(5, {12: JobOwner(os.getuid() + 1)}) is None
    assert ProcessJobs(tmp_path).job_of(5, {13: JobOwner(os.getuid())}) is None


def test_a_cgroup_is_not_overruled_by_an_environment(tmp_path: Path) -> None:
    process(tmp_path, 5, "0::/system.slice/slurmstepd.scope/job_4/step_0\n", b"SLURM_JOB_ID=12\0")
    jobs = {4: JobOwner(os.getuid()), 12: JobOwner(os.getuid())}
    assert ProcessJobs(tmp_path).job_of(5, jobs) == 4


def test_a_process_that_has_gone_is_remembered_and_a_later_one_is_another(tmp_path: Path) -> None:
    jobs = {4: JobOwner(None), 5: JobOwner(None)}
    known = ProcessJobs(tmp_path)
    process(tmp_path, 5, "9:freezer:/slurm/uid_1/job_4/step_0\n", b"")
    assert known.job_of(5, jobs) == 4
    (tmp_path / "5" / "stat").unlink()
    assert known.job_of(5, jobs) == 4  # the driver still tells what it did
    process(tmp_path, 5, "9:freezer:/slurm/uid_1/job_5/step_0\n", b"", started=200)
    assert known.job_of(5, jobs) == 5
    assert known.job_of(6, jobs) is None
