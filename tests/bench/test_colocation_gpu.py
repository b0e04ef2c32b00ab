"""Without a GPU, the benchmark of real GPUs is skipped or measures stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.colocation_gpu import Rounds, read_options, table_of
from bench.gpu_applications import CPU, TORCH
from bench.gpu_groups import GroupError, Mps, NotSharedError, Window, run_together
from bench.gpu_worker import Steps
from slurm_gpu.colocation.tables.read import read_table

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "colocation_gpu.py"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments], cwd=directory, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert (done.returncode, done.stdout) == (0, 'skipped: no GPU\n{"skipped": "no GPU"}\n')


def test_a_table_of_stand_ins_is_read_as_any_table_is(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "--device",
        "cpu",
        "--applications",
        "stream",
        "--triples",
        "1",
        "--seconds",
        "0.05",
        "--warmup",
        "0",
        "--repeats",
        "1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    table = read_table(tmp_path / "timeslicing.json")
    assert (table.gpu_model, table.names, table.lacking) == ("processor", ("stream",), [])
    assert table.groups == [(0, 0), (0, 0, 0)]
    sharing = json.loads(done.stdout.splitlines()[-1])["sharing"]["timeslicing"]
    assert sharing["alone"]["stream"]["per_s"] > 0
    assert [len(one["speeds"]) for one in sharing["together"]] == [2, 3]
    assert all(one["memory_mib"] > 0 for one in sharing["together"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--applications conv --device cpu", "conv is not among those of cpu"),
        ("--applications convolution", "unknown value 'convolution'; values: conv,"),
        ("--sharing mps --device cpu", "MPS requires a GPU"),
        ("--out nowhere --device cpu", "nowhere is not a directory"),
    ],
)
def test_invalid_options_are_refused(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_options(arguments.split())
    assert said in capsys.readouterr().err


def test_speeds_are_medians_and_who_runs_out_of_memory_cannot_run_together() -> None:
    found = {
        ("a",): Rounds(per_s=[(10.0,), (12.0,), (11.0,)]),
        ("b",): Rounds(per_s=[(5.0,)]),
        ("c",): Rounds(failure="c ended: no such kernel"),
        ("a", "a"): Rounds(speeds=[(0.4, 0.6)]),
        ("a", "b"): Rounds(speeds=[(0.5, 1.02), (0.9, 1.01), (0.7, 1.05)]),
        ("b", "b"): Rounds(refused=True),
        ("a", "c"): Rounds(speeds=[]),
        ("a", "a", "b"): Rounds(speeds=[(0.3, 0.5, 0.2)]),
    }
    table = table_of("card", found)
    assert (table.names, table.alone_per_s) == (("a", "b"), (11.0, 5.0))
    assert table.together((0, 0)) == (0.5, 0.5)  # the order of two does not matter
    assert table.together((0, 1)) == (0.7, 1.0)
    assert table.together((1, 1)) == (0.0, 0.0)
    assert table.together((0, 0, 1)) == (0.4, 0.4, 0.2)


@given(
    batches=st.lists(st.tuples(st.floats(0.001, 5), st.integers(1, 100)), min_size=1, max_size=20),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_steps_of_a_window_are_those_between_and_add_up(
    batches: list[tuple[float, int]], cut: tuple[float, float]
) -> None:
    steps, now_s = Steps(0.0), 0.0
    for took_s, n in batches:
        now_s += took_s
        steps.add(now_s, n)
    total = sum(n for _, n in batches)
    assert steps.between(0.0, now_s) == pytest.approx(total)
    begin_s, end_s = sorted(part * now_s for part in cut)
    if begin_s < end_s:
        inside = steps.between(begin_s, end_s)
        outside = [steps.between(*span) for span in ((0.0, begin_s), (end_s, now_s)) if span[0] < span[1]]
        assert inside + sum(outside) == pytest.approx(total)
    with pytest.raises(ValueError, match="seen is"):
        steps.between(0.0, now_s + 1)


def test_a_failed_program_is_named_with_its_message() -> None:
    with pytest.raises(GroupError, match=r"nothing ended: .*invalid choice: 'nothing'"):
        run_together(("nothing",), "cpu", 0.01, Window(0.0, 0.1), os.environ, lambda: None)


def test_a_missing_or_failing_mps_is_reported_and_stopped(tmp_path: Path) -> None:
    with (
        pytest.raises(NotSharedError, match="mps-control-that-is-missing is not installed"),
        Mps({}, "mps-control-that-is-missing"),
    ):
        pass
    program, log = tmp_path / "control", tmp_path / "log"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then echo "-d in $CUDA_MPS_PIPE_DIRECTORY" >> {log}\n'
        f"echo 'Operation not permitted' >&2; exit 1; fi\ncat >> {log}\n"
    )
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"]}
    with pytest.raises(NotSharedError, match="-d: Operation not permitted"), Mps(environment, str(program)):
        pass
    started, ended = log.read_text().splitlines()
    assert started.startswith("-d in /")
    assert ended == "quit"
    assert not Path(started.removeprefix("-d in ")).exists()


@pytest.mark.parametrize("name", CPU)
def test_each_stand_in_makes_steps(name: str) -> None:
    step = CPU[name](0.01)
    step()
    step()


@pytest.mark.parametrize("name", TORCH)
def test_each_program_makes_steps_wherever_torch_is(name: str) -> None:
    torch = pytest.importorskip("torch")
    step = TORCH[name](torch.device("cpu"), 0.05)
    step()
    step()
