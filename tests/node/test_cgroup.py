"""A cgroup's name identifies the job in every version of Slurm, despite cgroups that users create."""

import pytest

from slurm_gpu.node.process.cgroup import CgroupJob, JobOwner, job_in_cgroup, job_in_environment, raw_id


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("9:freezer:/slurm_n1/uid_1001/job_4/step_batch\n1:name=systemd:/\n", 4),
        ("9:freezer:/slurm/uid_1001/job_41/step_0/task_3\n", 41),
        ("9:memory:/docker/abc/slurm_n1/uid_1001/job_4/step_0\n", 4),
        ("0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_0\n", 4),
        ("0::/system.slice/n1_slurmstepd.scope/job_4/step_extern/user/task_special\n", 4),
        ("0::/system.slice/slurmstepd.scope/s1A2B3C4D5E6F7/step_0/user/task_0\n", "s1A2B3C4D5E6F7"),
        ("0::/system.slice/slurmstepd.scope/job_s1A2B3C4D5E6F7/step_0/user\n", "s1A2B3C4D5E6F7"),
        ("0::/user.slice/user-1001.slice/job_4/x\n", None),
        ("0::/system.slice/slurmstepd.scope/system\n", None),
        ("9:memory:/slurm/system\n", None),
        ("0::/user.slice/user-1001.slice/user@1001.service/slurm/uid_0/job_4/x\n", None),
        ("0::/user.slice/user-1001.slice/slurmstepd.scope/job_4/x\n", None),
        ("1:name=systemd:/slurm/uid_1001/job_4/step_0\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_paths_of_all_versions(text: str, job: int | str | None) -> None:
    found = job_in_cgroup(text)
    assert found == (
        None if job is None else CgroupJob(job) if isinstance(job, int) else CgroupJob(sluid=job)
    )


@pytest.mark.parametrize(
    "path",
    [
        "0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_0/job_999",
        "0::/system.slice/slurmstepd.scope/job_4/slurmstepd.scope/job_999",
        "9:freezer:/slurm/uid_1001/job_4/step_0/slurm/uid_1002/job_999",
        "9:freezer:/slurm/uid_1001/job_4/step_0/job_999/x",
    ],
)
def test_cgroups_below_a_job_s_own_belong_to_the_job(path: str) -> None:
    assert job_in_cgroup(path + "\n") == CgroupJob(4)


def test_a_sluid_identifies_the_open_job_that_has_it() -> None:
    jobs = {7: JobOwner(1001, "sA"), 8: JobOwner(1001, None)}
    assert raw_id(CgroupJob(sluid="sA"), jobs) == 7
    assert raw_id(CgroupJob(sluid="sB"), jobs) is None
    assert raw_id(CgroupJob(9), jobs) == 9


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (b"A=1\0SLURM_JOB_ID=12\0", 12),
        (b"XSLURM_JOB_ID=12\0", None),
        (b"A=1\nSLURM_JOB_ID=12\0", None),
        (b"SLURM_JOB_ID=1x\0", None),
        (b"SLURM_JOB_ID=" + b"9" * 100, None),
        (b"", None),
    ],
)
def test_environments(environment: bytes, job: int | None) -> None:
    assert job_in_environment(environment) == job
