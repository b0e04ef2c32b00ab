"""A job's cgroups are found in every layout of Slurm, and count only that job."""

from pathlib import Path

import pytest

from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from tests.node.fakeproc import write

JOB = JobName(4, 1001, "s1A2B3C4D5E6F7")
V1_STAT = "cache 9\nrss 1\ntotal_cache 99999999\ntotal_rss 3145728\ntotal_shmem 1048576\n"


def v1(mount: Path, root: str, *, job: str = "job_4", user: str = "uid_1001") -> None:
    inner = f"{root}/{user}/{job}"
    write(mount / "freezer" / inner / "cgroup.procs", "")
    write(mount / "freezer" / inner / "step_batch" / "cgroup.procs", "11\n12\n")
    write(mount / "freezer" / inner / "step_0" / "task_0" / "cgroup.procs", "13\n")
    write(mount / "cpuacct" / inner / "cpuacct.usage", "2500000000\n")
    write(mount / "memory" / inner / "memory.stat", V1_STAT)


def v2(mount: Path, scope: str, job: str = "job_4") -> None:
    write(mount / "cgroup.controllers", "cpu memory\n")
    directory = mount / scope / job
    write(directory / "cgroup.procs", "")
    write(directory / "cpu.stat", "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    write(directory / "memory.stat", "anon 3145728\nfile 99999999\nshmem 1048576\n")
    write(directory / "step_0" / "slurm" / "cgroup.procs", "11\n")
    write(directory / "step_0" / "user" / "task_0" / "cgroup.procs", "12\n13\n")


@pytest.mark.parametrize("root", ["slurm", "slurm_n1"])
@pytest.mark.parametrize("job", ["job_4", "s1A2B3C4D5E6F7", "job_s1A2B3C4D5E6F7"])
def test_version_1(tmp_path: Path, root: str, job: str) -> None:
    v1(tmp_path, root, job=job)
    groups = JobCgroups("n1", tmp_path)
    for name in (JOB, JobName(4, None, JOB.sluid)):
        pids = groups.pids(name, 100)
        assert pids is not None
        assert sorted(pids) == [11, 12, 13]
        counted = groups.cpu_s(name)
        assert counted is not None
        assert counted.value == 2.5
        assert groups.memory_mib(name) == 4.0


@pytest.mark.parametrize(
    "scope",
    [
        "system.slice/slurmstepd.scope",
        "system.slice/n1_slurmstepd.scope",
        "site.slice/slurmstepd.scope",
        "slurmstepd.scope",
    ],
)
@pytest.mark.parametrize("job", ["job_4", "s1A2B3C4D5E6F7"])
def test_version_2(tmp_path: Path, scope: str, job: str) -> None:
    v2(tmp_path, scope, job)
    write(tmp_path / scope / "system" / "cgroup.procs", "1\n")
    groups = JobCgroups("n1", tmp_path)
    pids = groups.pids(JOB, 100)
    assert pids is not None
    assert sorted(pids) == [11, 12, 13]
    counted = groups.cpu_s(JOB)
    assert counted is not None
    assert counted.value == 2.5
    assert groups.memory_mib(JOB) == 4.0
    assert groups.is_alone(JOB)


def test_a_requeued_job_is_found_by_its_slurmstepd_s_process_title(tmp_path: Path) -> None:
    """Test a requeued job, whose SLUID differs from its previous run's."""
    scope = "system.slice/slurmstepd.scope"
    for sluid, pid, title in (("s4BSM8HC7SRF00", 11, "4.batch"), ("s4BSM8HC7SRG00", 21, "5.batch stepmgr")):
        v2(tmp_path, scope, sluid)
        write(tmp_path / scope / sluid / "step_0" / "slurm" / "cgroup.procs", f"{pid}\n")
        write(tmp_path / "proc" / str(pid) / "cmdline", f"slurmstepd: [{title}]\0")
    groups = JobCgroups("n1", tmp_path, tmp_path / "proc")
    returned = JobName(4, 1001, "s4BSM8HC7M5A00")
    assert groups.pids(returned, 100) is not None
    assert 11 in (groups.pids(returned, 100) or ())
    assert groups.age_s(returned, 0.0) is not None
    assert [groups.job_of_sluid(name) for name in ("s4BSM8HC7SRF00", "s4BSM8HC7SRG00", "s0")] == [4, 5, None]
    assert groups.pids(JobName(6, 1001), 100) is None
    assert not groups.is_alone(returned)
    for file in (tmp_path / scope / "s4BSM8HC7SRG00").rglob("cgroup.procs"):
        file.write_text("")
    assert groups.is_alone(returned)


def test_each_of_several_slurmds_on_a_host_has_its_own_cgroups(tmp_path: Path) -> None:
    v1(tmp_path, "slurm_n1")
    assert JobCgroups("n1", tmp_path).pids(JOB, 100) is not None
    assert JobCgroups("n2", tmp_path).pids(JOB, 100) is None


def test_a_recreated_cgroup_is_another_one(tmp_path: Path) -> None:
    v2(tmp_path, "system.slice/slurmstepd.scope")
    groups = JobCgroups("n1", tmp_path)
    first = groups.cpu_s(JOB)
    directory = tmp_path / "system.slice/slurmstepd.scope/job_4"
    directory.rename(directory.with_name("old"))
    v2(tmp_path, "system.slice/slurmstepd.scope")
    second = groups.cpu_s(JOB)
    assert first is not None
    assert second is not None
    assert first.identity != second.identity


def test_a_job_is_alone_if_no_other_job_has_a_process(tmp_path: Path) -> None:
    v1(tmp_path, "slurm_n1")
    groups = JobCgroups("n1", tmp_path)
    assert groups.is_alone(JOB)
    left_over = tmp_path / "freezer" / "slurm_n1" / "uid_1002" / "job_3"
    write(left_over / "cgroup.procs", "")
    assert groups.is_alone(JOB)
    write(left_over / "step_0" / "cgroup.procs", "99\n")
    assert not groups.is_alone(JOB)


def test_without_cgroups_every_value_is_none(tmp_path: Path) -> None:
    groups = JobCgroups("n1", tmp_path)
    assert (groups.pids(JOB, 10), groups.cpu_s(JOB), groups.memory_mib(JOB)) == (None, None, None)
    assert groups.is_alone(JOB)


def test_broken_files_are_gaps(tmp_path: Path) -> None:
    v1(tmp_path, "slurm")
    inner = "slurm/uid_1001/job_4"
    write(tmp_path / "cpuacct" / inner / "cpuacct.usage", "?\n")
    write(tmp_path / "memory" / inner / "memory.stat", "total_cache 5\nnonsense\n")
    groups = JobCgroups("n1", tmp_path)
    assert (groups.cpu_s(JOB), groups.memory_mib(JOB)) == (None, None)


def test_work_is_bounded(tmp_path: Path) -> None:
    v1(tmp_path, "slurm")
    many = "".join(f"{pid}\n" for pid in range(20_000))
    write(tmp_path / "freezer/slurm/uid_1001/job_4/step_0/cgroup.procs", many)
    pids = JobCgroups("n1", tmp_path).pids(JOB, 4096)
    assert pids is not None
    assert len(pids) == 4097


def test_a_job_with_too_many_directories_counts_as_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu.node.process.job_cgroups._MOST_DIRECTORIES", 5)
    v1(tmp_path, "slurm")
    for step in range(9):
        write(tmp_path / f"freezer/slurm/uid_1001/job_4/step_{step}/cgroup.procs", f"{100 + step}\n")
    pids = JobCgroups("n1", tmp_path).pids(JOB, 4096)
    assert pids is not None
    assert len(pids) == 4097  # over the limit, so callers do not sum only a part
    assert set(pids) < {11, 12, 13, *range(100, 109)}
