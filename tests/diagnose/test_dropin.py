"""slurm_gpu_steps.py as a training uses it: real processes write side by side, and die, and are read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.cli.stepsfile import timings_of
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import Course, Worker, align
from slurm_gpu.diagnose.steps import judge_steps
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.errors import UsageError

FILE = Path(__file__).resolve().parents[2] / "plugins/steps/slurm_gpu_steps.py"
TRAINING = """
import sys, time
sys.path.insert(0, {folder!r})
from slurm_gpu_steps import Steps
steps = Steps({directory!r}, every={every})
for number in range({steps}):
    with steps.step():
        for _ in range(2):
            with steps.forward():
                time.sleep({seconds})
    print(number, flush=True)
"""


def a_rank(directory: Path, rank: int, *, seconds=0.004, steps=6, every=1) -> "subprocess.Popen[str]":
    """A rank of a training on two nodes of two GPUs, as torchrun starts it."""
    script = TRAINING.format(
        folder=str(FILE.parent), directory=str(directory), every=every, steps=steps, seconds=seconds
    )
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "SLURMD_NODENAME": f"n{rank // 2 + 1}"}
    return subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **place}, stdout=subprocess.PIPE, text=True
    )


def all_ranks(directory: Path, **more) -> None:
    processes = [a_rank(directory, rank, **more) for rank in range(4)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0


def test_ranks_on_several_nodes_write_side_by_side(tmp_path: Path):
    all_ranks(tmp_path)
    timings = timings_of(tmp_path)
    assert timings.steps.forward.shape == (4, 1, 6, 2)
    assert (timings.steps.forward >= 0.004).all()
    assert timings.places == {0: ("n1", 0), 1: ("n1", 1), 2: ("n2", 0), 3: ("n2", 1)}


def test_only_every_so_manieth_step_is_timed(tmp_path: Path):
    all_ranks(tmp_path, every=3)
    assert timings_of(tmp_path).steps.numbers.tolist() == [0, 3]


def test_what_was_told_before_a_kill_is_read(tmp_path: Path):
    process = a_rank(tmp_path, 0, steps=10_000)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    file = tmp_path / "rank-00000.csv"
    assert file.read_text().endswith("\n")
    assert len(timings_of(tmp_path).steps.numbers) >= 5
    # A disk that is full ends a line anywhere.
    file.write_text(file.read_text() + "0,0,0,99,forward-comp")
    assert 99 not in timings_of(tmp_path).steps.numbers


def test_a_run_that_begins_again_begins_its_file_again(tmp_path: Path):
    for _ in range(2):
        a_rank(tmp_path, 0, steps=4).communicate()
    assert timings_of(tmp_path).steps.forward.shape == (1, 1, 4, 2)
    assert timings_of(tmp_path).steps.forward.max() < 0.1


def test_a_slow_rank_is_told_with_its_gpu(tmp_path: Path):
    for rank in range(4):
        lines = ["dp_rank,stage,rank,step,optype,duration,mb_id,node,local_rank"]
        for step in range(8):
            seconds = 0.05 * (1.3 if rank == 2 else 1.0) * (1 + 0.001 * step)
            lines.append(f"{rank},0,{rank},{step},forward-compute,{seconds},0,n{rank // 2 + 1},{rank % 2}")
        (tmp_path / f"rank-{rank:05}.csv").write_text("\n".join(lines) + "\n")
    timings = timings_of(tmp_path)
    verdict = judge_steps(timings.steps)
    assert (verdict.cause, [worker.rank for worker in verdict.culprits]) == (Cause.SLOW, [2])
    courses = [
        Course(
            worker=Worker(node=f"n{row // 2 + 1}", device=f"GPU-{row}", index=4 + row % 2),
            start_s=0.0,
            width_s=1.0,
            values={Metric.UTIL: [1.0] * 4},
        )
        for row in range(4)
    ]
    ranked = timings.ranked(align(courses))
    assert [worker.name for worker in ranked.workers][2] == "rank 2 (n2 GPU 4)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,step\n", "no column"),
        ("a,b\n1\n", "line 2: 1 values for 2 columns"),
        ("rank,step\nx,1\n", "column rank"),
    ],
)
def test_a_file_that_is_none_says_where(tmp_path: Path, text: str, message: str):
    (tmp_path / "rank-00000.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        timings_of(tmp_path)


def test_a_directory_without_any_says_so(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no \*.csv in it"):
        timings_of(tmp_path)
