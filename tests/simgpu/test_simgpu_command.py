"""A simgpu run by a job script appears in the world and in the truth, and leaves the world at its end."""

import os
import signal
import subprocess
import time

import pytest

from lab.nvml import SOURCES
from lab.simgpu import faults, layout
from lab.simgpu.creation import create
from lab.simgpu.load import Activity
from lab.simgpu.specs import GpuSpec, MigSpec
from lab.simgpu.truth import load, usage
from lab.simgpu.world import World

SIMGPU = SOURCES.parent / "simgpu" / "simgpu"


@pytest.fixture
def lab(tmp_path):
    """A lab directory with a node n1 that has two GPUs."""
    (tmp_path / "truth").mkdir()
    (tmp_path / "nodes" / "n1").mkdir(parents=True)
    create(tmp_path / "nodes" / "n1" / "gpus.world", [GpuSpec("GPU-a", minor=1), GpuSpec("GPU-b", minor=0)])
    return tmp_path


def start(lab, *arguments, **environment):
    return subprocess.Popen(
        [SIMGPU, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "SLURM_GPU_LAB_DIR": str(lab),
            "SLURMD_NODENAME": "n1",
            "SIMGPU_DEVICES": "/nowhere",
            "SLURM_JOB_ID": "7",
            **environment,
        },
    )


def run(lab, *arguments, **environment):
    process = start(lab, *arguments, **environment)
    _, complaint = process.communicate(timeout=20)
    return process.returncode, complaint


def truth_of(lab, count, deadline_s=10):
    deadline = time.monotonic() + deadline_s
    while len(found := load(lab / "truth")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def slots(lab):
    return [slot for slot in World(lab / "nodes" / "n1" / "gpus.world").content.processes[:16] if slot.state]


def test_the_truth_is_the_schedule(lab):
    began = time.time()
    assert run(
        lab, "--phases", "util=80,mem=4096,s=0.2; util=0:40,mem=8192,s=0.2", SLURM_RESTART_COUNT="3"
    ) == (0, "")
    ended = time.time()
    found = load(lab / "truth")
    assert {(item.job_id, item.restart, item.node, item.uuid) for item in found} == {
        (7, 3, "n1", "GPU-a"),
        (7, 3, "n1", "GPU-b"),
    }
    assert {item.ended_by for item in found} == {"schedule"}
    first = found[0].points[0].time_ns / 1e9
    assert began < first < ended - 0.4
    whole = usage(found, job_id=7, uuid="GPU-a", start_s=first, end_s=first + 0.4)
    assert (whole.util_pct, whole.mem_used_frac) == (
        pytest.approx(50, rel=1e-5),  # epoch seconds in a float are that exact
        pytest.approx(0.15, rel=1e-5),
    )
    assert [slot.end_ns for slot in slots(lab)] == [item.end_ns for item in found]


def test_only_the_visible_gpus_are_driven(lab):
    assert run(lab, "--seconds", "0.01", CUDA_VISIBLE_DEVICES="1")[0] == 0
    assert [item.uuid for item in load(lab / "truth")] == ["GPU-b"]
    assert run(lab, "--seconds", "0.01", CUDA_VISIBLE_DEVICES="") == (
        3,
        "simgpu: no CUDA-capable device is visible (CUDA_VISIBLE_DEVICES=, devices in /nowhere)\n",
    )


def test_expected_gpm_values_are_part_of_the_truth(lab):
    assert (
        run(lab, "--util", "50", "--seconds", "0.01", "--gpus", "0", "--activity", "tensor=0.8,dram=0")[0]
        == 0
    )
    (found,) = load(lab / "truth")
    assert found.activity == Activity(sm_active=0.6, sm_occupancy=0.4, tensor=0.8, dram=0)
    assert list(slots(lab)[0].factors) == [1, 0.6, 0.4, 0.8, 0, 1, 1, 1]


def test_footprints_change_immediately_between_phases(lab):
    phases = "util=90,mem=100,s=0.1; util=90,mem=100,power=0.5,clock=0.7,reasons=0x40,s=0.1"
    assert run(lab, "--phases", phases, "--gpus", "0") == (0, "")
    before, after = slots(lab)
    assert (list(before.factors)[5:], before.clock, before.reasons) == ([1, 1, 1], 1, 0)
    assert (list(after.factors)[5:], after.clock, after.reasons) == ([0.5, 1, 1], 0.7, 0x40)
    assert before.end_ns == after.points[0].time_ns
    found = load(lab / "truth")
    begin_s = min(item.points[0].time_ns for item in found) / 1e9
    whole = usage(found, job_id=7, uuid="GPU-a", start_s=begin_s, end_s=begin_s + 0.2)
    assert (whole.util_pct, whole.processes) == (pytest.approx(90, rel=1e-5), 1)


def test_a_signal_ends_what_was_yet_to_come(lab):
    process = start(lab, "--phases", "util=90,s=5; util=90,power=0.5,s=600", "--gpus", "0")
    truth_of(lab, 2)
    process.terminate()
    process.communicate(timeout=10)
    assert {item.ended_by for item in load(lab / "truth")} == {"SIGTERM"}
    assert [slot.end_ns < time.time_ns() for slot in slots(lab)] == [True, True]


def test_a_stretch_is_there_for_readers_before_it_begins_and_not_long_before(lab):
    process = start(lab, "--phases", "util=90,s=5; util=90,power=0.5,s=600; util=90,s=5", "--gpus", "0")
    truth_of(lab, 2)
    process.kill()
    process.communicate(timeout=10)
    first, second = slots(lab)
    assert (first.n_points, second.n_points) == (2, 2)
    assert first.points[1].time_ns == second.points[0].time_ns


def test_ranks_of_a_job_begin_together_by_schedules_from_files(lab):
    schedule = lab / "rank0"
    schedule.write_text("util=90,s=0.1")
    at = time.time() + 5
    process = start(lab, "--phases", f"@{schedule}", "--at", f"{at:.3f}", "--gpus", "0")
    (found,) = truth_of(lab, 1)
    process.kill()
    process.communicate(timeout=10)
    assert found.points[0].time_ns / 1e9 == pytest.approx(at, abs=0.001)


def test_a_client_of_mps_is_marked(lab):
    assert run(lab, "--seconds", "0.01", "--gpus", "0", "--mps")[0] == 0
    assert run(lab, "--seconds", "0.01", "--gpus", "0")[0] == 0
    assert [slot.flags for slot in slots(lab)] == [layout.PROCESS_MPS, 0]


def test_an_instance_is_driven_by_its_uuid(lab):
    path = lab / "nodes" / "n1" / "gpus.world"
    faults.mig(World(path), 0, [MigSpec("1g.5gb", "MIG-x"), MigSpec("2g.10gb", "MIG-y")])
    assert run(lab, "--seconds", "0.01", "--mem-mib", "9000", CUDA_VISIBLE_DEVICES="MIG-y")[0] == 0
    (found,) = load(lab / "truth")
    assert (found.uuid, found.memory_mib) == ("MIG-y", 9984)
    status, message = run(lab, "--seconds", "0.01", "--mem-mib", "9000", CUDA_VISIBLE_DEVICES="MIG-x")
    assert (status, "MIG-x has 4864" in message) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_simgpu_and_the_truth_records_the_time(lab, number):
    process = start(lab, "--util", "40", "--seconds", "1000", "--gpus", "0")
    truth_of(lab, 1)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == -number
    (found,) = load(lab / "truth")
    assert found.ended_by == number.name
    assert found.end_ns == pytest.approx(time.time_ns(), abs=2e9)
    assert [slot.end_ns for slot in slots(lab)] == [found.end_ns]


def test_kill_leaves_an_open_end(lab):
    process = start(lab, "--util", "40", "--seconds", "1000", "--gpus", "0")
    truth_of(lab, 1)
    process.kill()
    process.communicate(timeout=10)
    (found,) = load(lab / "truth")
    assert (found.end_ns, found.ended_by) == (None, None)


def test_two_at_once_get_slots_of_their_own(lab):
    processes = [start(lab, "--util", "40", "--seconds", "0.3") for _ in range(4)]
    for process in processes:
        assert process.communicate(timeout=20) == (None, "")
        assert process.returncode == 0
    assert sorted((slot.pid, slot.target) for slot in slots(lab)) == sorted(
        (process.pid, device) for process in processes for device in (0, 1)
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--util", "120"], "--util '120': must not exceed 100"),
        (["--mem-mib", "50000"], "out of memory: 50000 MiB requested, GPU-a has 40448"),
        (["--gpus", "5"], "--gpus '5': there is no GPU 5, CUDA would see 2 here"),
        (["--profile", "vgg"], "profile 'vgg': must be one of resnet50"),
        (["--phases", "util=1,s=1", "--seconds", "5"], "omit --seconds"),
        (["--activity", "sm=1"], "activity 'sm': must be one of sm_active, sm_occupancy, tensor, dram"),
        (["--activity", "tensor=2"], "activity 'tensor=2': must be a factor from 0 to 1"),
        (["--util", "5", "--profile", "bert"], "not allowed with argument"),
        (["--util", "5", "--at", "soon"], "--at 'soon': must be seconds since 1970"),
        (["--util", "5", "--at", "1790000000"], "s ago; write a future time"),
    ],
)
def test_an_invalid_request_is_reported(lab, arguments, complaint):
    status, message = run(lab, *arguments)
    assert status == 2
    assert complaint in message
    assert slots(lab) == []


def test_no_world_is_a_failure_outside(lab):
    status, message = run(lab, SLURMD_NODENAME="n9")
    assert status == 3
    assert "n9/gpus.world: No such file or directory; is there a simulated node here?" in message
