"""Real processes write timings with slurm_gpu_steps.py; their files can be read even after a kill."""

import os
import signal
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu.cli.runs.steps_file import timings_of
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import JobWorker, WorkerSeries, align
from slurm_gpu.diagnose.steps.judge import judge_steps
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
    """Start a rank of a training run on two nodes with two GPUs each, as torchrun does."""
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


def test_data_before_a_kill_is_read(tmp_path: Path):
    process = a_rank(tmp_path, 0, steps=10_000)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    file = tmp_path / "rank-00000.csv"
    assert file.read_text().endswith("\n")
    assert len(timings_of(tmp_path).steps.numbers) >= 5
    # If the disk is full, a line may end anywhere.
    file.write_text(file.read_text() + "0,0,0,99,forward-comp")
    assert 99 not in timings_of(tmp_path).steps.numbers


def test_a_run_that_begins_again_begins_its_file_again(tmp_path: Path):
    for _ in range(2):
        a_rank(tmp_path, 0, steps=4).communicate()
    assert timings_of(tmp_path).steps.forward.shape == (1, 1, 4, 2)
    lines = (tmp_path / "rank-00000.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * 3, "a line per step, and one per microbatch"


def test_two_trainings_of_one_job_do_not_write_into_each_other(tmp_path: Path):
    """Without a launcher, both training runs are rank 0."""
    first = a_rank(tmp_path, 0, steps=10_000)
    assert first.stdout is not None
    first.stdout.readline()
    other = subprocess.run(
        [sys.executable, "-c", ENDLESS.format(folder=str(FILE.parent), directory=str(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    )
    first.kill()
    first.communicate()
    assert other.stdout == "trained\n"
    assert "another process is writing to it; give each training run its own directory" in other.stderr
    numbers = timings_of(tmp_path).steps.numbers
    assert numbers.tolist() == list(range(len(numbers)))


def test_a_process_may_begin_another_training(tmp_path: Path):
    again = ENDLESS.format(folder=str(FILE.parent), directory=str(tmp_path))
    again = again.replace("steps = Steps", f"steps = Steps({str(tmp_path)!r}); steps = Steps")
    result = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("trained\n", "")


def test_a_slow_rank_is_reported_with_its_gpu(tmp_path: Path):
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
        WorkerSeries(
            worker=JobWorker(node=f"n{row // 2 + 1}", device=f"GPU-{row}", index=4 + row % 2),
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
        ("rank,step\n", "missing column"),
        ("a,b\n1\n", "line 2: 1 values for 2 columns"),
        ("rank,step\nx,1\n", "column rank"),
    ],
)
def test_an_invalid_file_is_an_error_with_the_position(tmp_path: Path, text: str, message: str):
    (tmp_path / "rank-00000.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        timings_of(tmp_path)


def test_a_directory_without_files_is_an_error(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no \*.csv file"):
        timings_of(tmp_path)


ENDLESS = """
import os, sys
sys.path.insert(0, {folder!r})
from slurm_gpu_steps import Steps
steps = Steps({directory!r})
for number in range(4):
    with steps.step():
        with steps.forward():
            pass
print("trained")
"""


@pytest.mark.parametrize("broken", ["full", "no directory"])
def test_a_training_continues_where_its_timings_cannot_be_written(tmp_path: Path, broken: str):
    if broken == "full":
        (tmp_path / "rank-00000.csv").symlink_to("/dev/full")
    else:
        (tmp_path / "file").write_text("")
    directory = tmp_path if broken == "full" else tmp_path / "file"
    result = subprocess.run(
        [sys.executable, "-c", ENDLESS.format(folder=str(FILE.parent), directory=str(directory))],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert result.stdout == "trained\n"
    assert result.stderr.count("steps are no longer timed") == 1
    assert "rank-00000.csv" in result.stderr


def test_every_step_is_the_least(tmp_path: Path):
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            TRAINING.format(folder=str(FILE.parent), directory=str(tmp_path), every=0, steps=1, seconds=0),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ValueError: every must be 1 or more, not 0" in result.stderr


HEAD = "dp_rank,stage,rank,step,optype,duration,mb_id,node,local_rank"


def a_csv(tmp_path: Path, *, head: str = HEAD, n: int = 4, **changed) -> Path:
    """Write some steps of a few ranks; `changed` contains values of rank 1, by column."""
    lines = [head]
    for rank in range(n):
        for step in range(6):
            result = (rank, 0, rank, step, "forward-compute", 0.5, 0, "n1", rank)
            row = dict(zip(HEAD.split(","), result, strict=True))
            row |= changed if rank == 1 else {}
            lines.append(",".join(map(str, row.values())))
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"duration": "nan"}, "duration must be seconds, 0 to 1,000,000"),
        ({"duration": "inf"}, "duration must be seconds"),
        ({"duration": "1e300"}, "duration must be seconds"),
        ({"node": "x" * 300}, "line 8: a value of more than 255 characters"),
        ({"node": "x" * 200_000}, "line 8: more than 4096 characters"),
        ({"step": 10**30}, "line 8: column step: '1000000000000000000000000000000' is not a whole number"),
        ({"duration": "abc"}, "line 8: column duration: 'abc' is not a number"),
    ],
)
def test_values_that_are_none_are_refused_with_their_place(tmp_path: Path, changed, message: str):
    with pytest.raises(UsageError, match=message):
        timings_of(a_csv(tmp_path, **changed))


def test_a_file_without_lines_is_an_error(tmp_path: Path):
    (tmp_path / "steps.csv").write_text("dp_rank,sta")
    with pytest.raises(UsageError, match=r"steps.csv: has no complete line"):
        timings_of(tmp_path / "steps.csv")


def test_a_duplicate_column_is_rejected(tmp_path: Path):
    path = a_csv(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line},{'duration' if line == HEAD else 1}\n" for line in lines))
    with pytest.raises(UsageError, match="line 1: two columns have the same name"):
        timings_of(path)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path):
    path = a_csv(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert timings_of(path).steps.forward.shape == (4, 1, 6, 1)


def test_a_rank_with_duplicate_rows_is_not_called_slow_for_it(tmp_path: Path):
    path = a_csv(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines + lines[7:13]))
    with pytest.raises(UsageError, match="rank 1 has 2 rows for one operation"):
        timings_of(path)


def test_several_chunks_of_a_model_on_one_stage_are_no_mistake(tmp_path: Path):
    path = a_csv(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines + lines[1:]))
    assert timings_of(path).steps.forward.max() == 1.0


@pytest.mark.parametrize("changed", [{"local_rank": -1}, {"local_rank": 0}, {"local_rank": 9}])
def test_an_impossible_place_is_assigned_to_no_worker(tmp_path: Path, changed):
    workers = [
        WorkerSeries(
            worker=JobWorker(node="n1", device=f"GPU-{i}", index=i),
            start_s=0.0,
            width_s=1.0,
            values={Metric.UTIL: np.ones(4)},
        )
        for i in range(4)
    ]
    ranked = timings_of(a_csv(tmp_path, **changed)).ranked(align(workers))
    assert 1 not in [worker.rank for worker in ranked.workers]
    assert {2, 3} <= {worker.rank for worker in ranked.workers}


def test_a_pipe_is_rejected_without_waiting(tmp_path: Path):
    a_csv(tmp_path)
    os.mkfifo(tmp_path / "rank-00009.csv")
    with pytest.raises(UsageError, match=r"rank-00009.csv: is not a regular file"):
        timings_of(tmp_path)
    os.mkfifo(tmp_path / "steps.parquet")
    with pytest.raises(UsageError, match=r"not a regular file|needs pyarrow"):
        timings_of(tmp_path / "steps.parquet")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path):
    with (tmp_path / "rank-00000.csv").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(UsageError, match="together more than 256 MiB"):
        timings_of(tmp_path)


def test_steps_that_take_no_time_are_judged_without_a_warning(tmp_path: Path):
    path = a_csv(tmp_path, duration=0)
    path.write_text(path.read_text().replace("0.5", "0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = judge_steps(timings_of(path).steps)
    assert (verdict.cause, verdict.why_not) == (Cause.INCONCLUSIVE, ("all durations are 0",))


@pytest.mark.parametrize(
    "changed",
    [{"local_rank": [None] * 8}, {"node": [1] * 8}, {"duration": [[1.0]] * 8}, {"rank": [{"a": 1}] * 8}],
)
def test_parquet_of_other_kinds_is_refused_by_its_column(tmp_path: Path, changed):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {name: [0] * 8 for name in HEAD.split(",")}
    table |= {"optype": ["forward-compute"] * 8, "duration": [1.0] * 8, "node": ["n1"] * 8, **changed}
    parquet.write_table(pa.table(table), tmp_path / "steps.parquet")
    with pytest.raises(UsageError, match=f"column {next(iter(changed))} has type"):
        timings_of(tmp_path / "steps.parquet")


def test_a_duplicate_column_of_parquet_is_rejected(tmp_path: Path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.Table.from_arrays([pa.array([0]), pa.array([1])], names=["rank", "rank"])
    parquet.write_table(table, tmp_path / "steps.parquet")
    with pytest.raises(UsageError, match="has column rank 2 times"):
        timings_of(tmp_path / "steps.parquet")


def test_one_long_string_in_parquet_does_not_enlarge_every_row(tmp_path: Path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = 100_000
    table = {name: np.arange(n) % 4 if "rank" in name else np.zeros(n, dtype=int) for name in HEAD.split(",")}
    table |= {"step": np.arange(n) // 4, "optype": ["forward-compute"] * n, "duration": np.ones(n)}
    table["node"] = ["n1"] * (n - 1) + ["x" * 255]
    parquet.write_table(pa.table(table), tmp_path / "steps.parquet")
    del table
    tracemalloc.start()
    timings = timings_of(tmp_path / "steps.parquet")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert timings.steps.forward.shape == (4, 1, n // 4, 1)
    assert most < 60e6


def test_tensor_parallel_ranks_are_of_their_stage(tmp_path: Path):
    lines = [HEAD]
    for rank in range(8):
        place = f"{rank // 2 % 2},{rank // 4},{rank}"
        lines += [f"{place},{step},forward-compute,0.5,0,n1,{rank}" for step in range(6)]
    (tmp_path / "steps.csv").write_text("\n".join(lines) + "\n")
    timings = timings_of(tmp_path / "steps.csv")
    workers = [
        WorkerSeries(
            worker=JobWorker(node="n1", device=f"GPU-{i}", index=i),
            start_s=0.0,
            width_s=1.0,
            values={Metric.UTIL: np.ones(4)},
        )
        for i in range(8)
    ]
    groups = timings.groups(timings.ranked(align(workers)))
    assert groups is not None
    assert groups.of.tolist() == [0] * 4 + [1] * 4
    assert timings.steps.forward.max() == 0.5


def test_an_unknown_rank_is_no_gpu(tmp_path: Path):
    workers = [
        WorkerSeries(
            worker=JobWorker(node="n1", device=f"GPU-{i}", index=i),
            start_s=0.0,
            width_s=1.0,
            values={Metric.UTIL: np.ones(4)},
        )
        for i in range(4)
    ]
    ranked = timings_of(a_csv(tmp_path, rank=-1)).ranked(align(workers))
    assert [worker.rank for worker in ranked.workers].count(None) == 1
    assert -1 not in [worker.rank for worker in ranked.workers]
