"""Jobs on one simulated GPU slow each other down as a hidden table says, and can run out of memory."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import START

from lab.nvml import SOURCES
from lab.simgpu.creation import create
from lab.simgpu.errors import RequestError
from lab.simgpu.schedule import Phase, parse_phases
from lab.simgpu.sharing import OUT_OF_MEMORY, SpeedTable, Work, Worker, courses
from lab.simgpu.specs import GpuSpec
from lab.simgpu.truth import ProcessTruth, load, usage
from lab.simgpu.world import World

TABLE = SpeedTable({"a": {"a": 0.5, "b": 0.8}, "b": {"a": 0.5, "b": 1.0}})
SIMGPU = SOURCES.parent / "simgpu" / "simgpu"


class Gpu:
    """A GPU of 10,000 MiB with a clock set by the test, and jobs that check it every tenth of a second."""

    def __init__(self, path: Path) -> None:
        create(path, [GpuSpec("GPU-a", memory_mib=10_500, reserved_mib=500)], boot=START)
        self.world = World(path)
        self.world.stop_clock(START * 10**9)
        self.jobs: dict[str, Worker] = {}
        self.over: dict[str, tuple[str, float]] = {}
        self.truth: dict[str, ProcessTruth] = {}

    def begin(self, name: str, application: str, phases: str, pid: int, lead_s: float = 0) -> None:
        device = self.world.devices[0]

        def truth_of(points):
            return ProcessTruth(pid, 0, "n1", "GPU-a", device.memory_mib, pid, points)

        def keep(truth):
            self.truth[truth.path_name] = truth

        work = Work(application, tuple(parse_phases(phases)), TABLE)
        self.jobs[name] = Worker(
            self.world, device, work, pid, round(lead_s * 1e9), truth_of, keep, started=0
        )

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.world.stop_clock(self.world.now_ns() + 10**8)
            for name, worker in list(self.jobs.items()):
                how = worker.turn()
                if how is not None:
                    self.over[name] = how, round((self.world.now_ns() - START * 10**9) / 1e9, 3)
                    del self.jobs[name]


@pytest.fixture
def gpu(tmp_path):
    return Gpu(tmp_path / "gpus.world")


def test_work_alone_takes_its_stated_time(gpu):
    gpu.begin("one", "a", "util=50,mem=1000,s=10", pid=1)
    gpu.pass_s(11)
    assert gpu.over == {"one": ("done", 10.0)}


def test_shared_jobs_run_at_the_speeds_of_the_table_until_alone_again(gpu):
    gpu.begin("a", "a", "util=50,s=10", pid=1)
    gpu.begin("b", "b", "util=50,s=3", pid=2)
    gpu.pass_s(20)
    # b needs 6 s for its 3 s at 0.5; meanwhile a does 4.8 of its 10 s, the rest alone. Checks lag by 0.1 s.
    assert gpu.over == {
        "b": ("done", pytest.approx(6.0, abs=0.2)),
        "a": ("done", pytest.approx(11.2, abs=0.3)),
    }


def test_a_job_with_a_changed_schedule_counts_once(gpu):
    gpu.begin("a", "a", "util=50,s=10", pid=1, lead_s=0.25)
    gpu.pass_s(1)
    gpu.begin("b", "a", "util=50,s=10", pid=2, lead_s=0.25)
    gpu.pass_s(5)
    assert [others for _, others, _ in gpu.jobs["a"].stretches] == [[], ["a"]]
    assert [others for _, others, _ in gpu.jobs["b"].stretches] == [["a"]]


def test_slowdowns_of_two_co_runners_are_added():
    assert TABLE.speed("a", []) == 1
    assert TABLE.speed("a", ["b"]) == 0.8
    assert TABLE.speed("a", ["b", "a"]) == pytest.approx(1 / (1 + 0.25 + 1))


def test_utilisation_falls_with_speed_and_nvml_and_the_truth_agree(gpu):
    gpu.begin("a", "a", "util=60,mem=2000,s=100", pid=1)
    gpu.pass_s(10)
    gpu.begin("b", "b", "util=40,mem=1000,s=100", pid=2)
    gpu.pass_s(10)
    found = list(gpu.truth.values())
    alone = usage(found, job_id=1, uuid="GPU-a", start_s=START + 1, end_s=START + 10)
    shared = usage(found, job_id=1, uuid="GPU-a", start_s=START + 12, end_s=START + 19)
    assert (alone.util_pct, shared.util_pct) == (pytest.approx(60), pytest.approx(48))
    assert shared.device_util_pct == pytest.approx(48 + 20)
    assert shared.mem_used_frac == pytest.approx(2000 / 10_500)  # memory does not fall


def test_a_job_that_exceeds_the_memory_ends_and_the_other_continues(gpu):
    gpu.begin("first", "a", "mem=6000,s=30", pid=1)
    gpu.pass_s(1)
    gpu.begin("late", "b", "mem=1000,s=5; mem=5000,s=5", pid=2)
    gpu.pass_s(40)
    # At half its speed its first 5 s take 10 s.
    assert gpu.over["late"] == (OUT_OF_MEMORY, pytest.approx(11.2, abs=0.3))
    assert gpu.over["first"][0] == "done"


def test_a_job_that_was_there_dies_if_it_is_the_one_that_grows(gpu):
    gpu.begin("grows", "a", "mem=1000:9000,s=20", pid=1)
    gpu.pass_s(1)
    gpu.begin("steady", "b", "mem=5000,s=15", pid=2)
    gpu.pass_s(40)
    assert gpu.over["grows"][0] == OUT_OF_MEMORY
    assert gpu.over["steady"][0] == "done"


def test_phases_continue_after_a_change_of_speed():
    work = Work("a", (Phase(4, (0, 80), (0, 400)), Phase(6, (50, 50), (400, 400))), TABLE)
    assert work.left(2, 0.5) == [Phase(4, (20, 40), (200, 400)), Phase(12, (25, 25), (400, 400))]
    assert work.left(4, 1) == [Phase(6, (50, 50), (400, 400))]
    assert work.seconds == 10


@pytest.mark.parametrize(
    ("speeds", "complaint"),
    [
        ({"a": {"b": 1.2}}, r"speed 1.2 of a with b: must be in \(0, 1\]"),
        ({"a": {"b": 0}}, "speed 0 of a with b"),
        ({"x" * 40: {}}, "must have 1 to 36 bytes"),
    ],
)
def test_a_table_that_cannot_be_is_refused(speeds, complaint):
    with pytest.raises(RequestError, match=complaint):
        SpeedTable(speeds)


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path):
        (tmp_path / "truth").mkdir()
        (tmp_path / "nodes" / "n1").mkdir(parents=True)
        create(tmp_path / "nodes" / "n1" / "gpus.world", [GpuSpec("GPU-a"), GpuSpec("GPU-b", minor=1)])
        (tmp_path / "speeds.json").write_text(json.dumps(TABLE.speeds))

        def start(*arguments, **environment):
            given = {
                "PATH": os.environ["PATH"],
                "SLURM_GPU_LAB_DIR": str(tmp_path),
                "SLURMD_NODENAME": "n1",
                "SIMGPU_DEVICES": "/nowhere",
                "SIMGPU_SPEEDS": str(tmp_path / "speeds.json"),
                "CUDA_VISIBLE_DEVICES": "0",
                **environment,
            }
            return subprocess.Popen([SIMGPU, *arguments], stderr=subprocess.PIPE, text=True, env=given)

        return start

    def test_two_jobs_slow_each_other_down_and_the_truth_records_it(self, run, tmp_path):
        both = [
            run("--application", name, "--util", "50", "--seconds", "0.6", SLURM_JOB_ID=job)
            for name, job in (("a", "1"), ("a", "2"))
        ]
        assert [(one.communicate(timeout=20), one.returncode) for one in both] == [((None, ""), 0)] * 2
        found = courses(tmp_path / "truth")
        assert [course.ended_by for course in found] == ["done", "done"]
        assert max(course.slowdown for course in found) > 1.2
        assert any(others == ["a"] and speed == 0.5 for _, others, speed in found[0].stretches)
        assert {truth.ended_by for truth in load(tmp_path / "truth")} <= {"done", "others"}

    def test_out_of_memory_is_a_failure_of_the_job(self, run):
        first = run("--application", "a", "--mem-mib", "30000", "--seconds", "20", SLURM_JOB_ID="1")
        second = run("--application", "b", "--phases", "mem=100,s=0.3;mem=20000,s=5", SLURM_JOB_ID="2")
        _, message = second.communicate(timeout=20)
        first.terminate()
        first.communicate(timeout=20)
        assert (second.returncode, message) == (1, "simgpu: out of memory: GPU-a has no more memory\n")

    @pytest.mark.parametrize(
        ("arguments", "environment", "complaint"),
        [
            (["--application", "a"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "works on one GPU, and 2 are visible"),
            (["--application", "a"], {"SIMGPU_SPEEDS": "/nowhere"}, "--speeds /nowhere"),
            (["--speeds", "x"], {}, "has no effect without --application"),
        ],
    )
    def test_an_invalid_request_is_reported(self, run, arguments, environment, complaint):
        process = run(*arguments, **environment)
        _, message = process.communicate(timeout=20)
        assert process.returncode == 2
        assert complaint in message
