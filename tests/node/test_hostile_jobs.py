"""Tricks of a job with its own processes change no other job's record, and resources remain bounded."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_gpu.node.process.process_jobs import ProcessJobs
from tests.node.fakeproc import FakeProc
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem

ALICE, MALLORY = 1001, 1002
VICTIM, HERS = 7, 8
SCOPE = "0::/system.slice/slurmstepd.scope"


class SharedGpu(Machine):
    """Alice's job 7 and mallory's job 8 on one GPU, with a /proc that the test writes."""

    def __init__(self, directory: Path) -> None:
        gpu = FakeGpu(FakeClock())
        super().__init__(directory, gpu)
        self.gpu, self.proc = gpu, directory / "proc"
        self.start_s = self.clock.now_s
        gpu.work.append(Work(VICTIM, self.start_s, self.start_s + 20, 30, 4 * GIB))
        gpu.work.append(Work(HERS, self.start_s, self.start_s + 20, 60, 10 * GIB))
        self.process(VICTIM, f"{SCOPE}/job_7/step_0/user/task_0")

    def processes(self) -> ProcessJobs:
        return ProcessJobs(self.proc, self.clock.monotonic)

    def process(
        self,
        job: int,
        cgroup: str,
        environ: bytes = b"",
        *,
        uid: int = ALICE,
        started: int = 100,
        name: str = "a",
    ) -> Path:
        """Write the process of `job` to /proc."""
        proc = FakeProc(self.proc)
        return proc.process(10_000 + job, cgroup=cgroup, environ=environ, uid=uid, started=started, name=name)

    def both_run(self) -> None:
        self.start()
        self.hook("prolog", VICTIM, "0", uid=ALICE)
        self.hook("prolog", HERS, "0", uid=MALLORY)
        self.run_until(self.start_s + 20)
        self.hook("epilog", VICTIM, "0")
        self.hook("epilog", HERS, "0")
        self.run(2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SharedGpu]:
    node = SharedGpu(tmp_path)
    yield node
    if node.spool is not None:
        node.spool.close()


def claims_the_victim_s_job(node: SharedGpu) -> None:
    node.process(HERS, "0::/", b"SLURM_JOB_ID=7\0", uid=MALLORY)


def makes_a_cgroup_of_the_victim_s_name(node: SharedGpu) -> None:
    node.process(HERS, f"{SCOPE}/job_8/step_0/user/job_7/step_0", uid=MALLORY)


def makes_slurm_s_whole_tree_below_her_own(node: SharedGpu) -> None:
    node.process(HERS, f"{SCOPE}/job_8/slurmstepd.scope/slurm/uid_1001/job_7/step_0", uid=MALLORY)


def makes_the_tree_in_her_session(node: SharedGpu) -> None:
    node.process(HERS, "0::/user.slice/user-1002.slice/system.slice/slurmstepd.scope/job_7/x", uid=MALLORY)


def names_her_program_as_if_it_were_fields(node: SharedGpu) -> None:
    name = "x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 7 7 (y"
    node.process(HERS, f"{SCOPE}/job_8/step_0", uid=MALLORY, name=name)


def has_a_giant_environment(node: SharedGpu) -> None:
    node.process(HERS, "0::/", b"A=" + b"x" * (8 << 20) + b"\0SLURM_JOB_ID=7\0", uid=MALLORY)


def makes_her_environment_unreadable(node: SharedGpu) -> None:
    directory = node.process(HERS, "0::/", uid=MALLORY)
    (directory / "environ").unlink()
    os.mkfifo(directory / "environ")


def exits_while_she_is_sampled(node: SharedGpu) -> None:
    (node.process(HERS, "", uid=MALLORY) / "cgroup").unlink()


def shows_rubbish(node: SharedGpu) -> None:
    directory = node.process(HERS, "0::", uid=MALLORY)
    (directory / "stat").write_bytes(b"\xff\x00)")
    (directory / "status").write_bytes(bytes(range(256)))


# After one of these tricks, mallory's process might belong to the victim.
HIDING = [exits_while_she_is_sampled, shows_rubbish]
TRICKS = [
    claims_the_victim_s_job,
    makes_a_cgroup_of_the_victim_s_name,
    makes_slurm_s_whole_tree_below_her_own,
    makes_the_tree_in_her_session,
    names_her_program_as_if_it_were_fields,
    has_a_giant_environment,
    makes_her_environment_unreadable,
    *HIDING,
]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_job_cannot_charge_its_work_to_another(node: SharedGpu, trick: Callable[[SharedGpu], None]) -> None:
    trick(node)
    node.both_run()
    victim, hers = node.records()
    assert (victim.job_id, hers.job_id) == (VICTIM, HERS)
    assert mem(victim) == pytest.approx(10, abs=0.5)
    if trick in HIDING:
        assert victim.sampled_s == 0
        assert hers.sampled_s == pytest.approx(0, abs=0.01)
    else:
        assert core(victim) == pytest.approx(30, abs=1)
        assert core(hers) == pytest.approx(60, abs=1) or core(hers) == pytest.approx(0, abs=1)
    for record in (victim, hers):
        assert record.allocated_s == pytest.approx(20, abs=0.1)


def test_a_reused_process_id_is_another_process(node: SharedGpu) -> None:
    """Test a process of mallory's with the ID of a former process of alice's, on the same GPU."""
    end = node.start_s + 20
    node.gpu.work = [Work(VICTIM, node.start_s, end, 30, 4 * GIB)]  # one id, two owners
    node.process(VICTIM, f"{SCOPE}/job_7/step_0")
    node.start()
    node.hook("prolog", VICTIM, "0", uid=ALICE)
    node.hook("prolog", HERS, "0", uid=MALLORY)
    node.run_until(node.start_s + 10)
    node.process(VICTIM, f"{SCOPE}/job_8/step_0", uid=MALLORY, started=2000)
    node.run_until(end)
    node.hook("epilog", VICTIM, "0")
    node.hook("epilog", HERS, "0")
    node.run(2)
    victim, hers = node.records()
    assert core(victim) == pytest.approx(15, abs=1.6)
    assert core(hers) == pytest.approx(15, abs=1.6)
    assert mem(victim) == pytest.approx(5, abs=0.6)


def test_many_short_processes_leave_no_trace(node: SharedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.node.process.process_jobs._REMEMBERED", 20)
    processes, before = node.processes(), _descriptors()
    for number in range(200):
        directory = node.process(HERS + number % 50, "0::/", uid=MALLORY, started=number)
        node.clock.advance(1)
        assert processes.job_of(int(directory.name), {}) is None
        shutil.rmtree(directory)
    assert len(processes._known) == 20
    assert _descriptors() == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_links_among_the_hook_files_are_not_followed(node: SharedGpu, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SLURM_JOB_ID=9\nEVENT=prolog\nSLURM_JOB_GPUS=0\n")
    node.start()
    (node.directory / "jobs" / "1-9-prolog").symlink_to(secret)
    (node.directory / "jobs" / "2-9-prolog").symlink_to(tmp_path / "nothing")
    (node.directory / "jobs" / "3-9-prolog").mkdir()
    node.hook("prolog", VICTIM, "0", uid=ALICE)
    node.run(5)
    node.hook("epilog", VICTIM, "0")
    node.run(2)
    assert [record.job_id for record in node.records()] == [VICTIM]
    assert secret.read_text().startswith("SLURM_JOB_ID=9")
