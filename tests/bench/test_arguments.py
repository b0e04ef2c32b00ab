"""A benchmark refuses invalid arguments before it starts."""

import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("hooks", "--runs 1", "'1' is not a whole number of at least 2"),
        ("hooks", "--shell /bin/nothing", "'/bin/nothing' is not a program on this machine"),
        ("process_scans", "--jobs 0", "'0' is not a whole number of at least 1"),
        ("sampler", "--turns 0", "'0' is not a whole number of at least 1"),
        ("sampler", "--seconds 0", "'0' is not a number of at least 1 s"),
        ("sampler", "--seconds 2 --turns 3", "each of the 3 turns takes at least 1 s"),
        ("sampler", "--gpus 17", "'17' is not a whole number from 1 to 16"),
        ("controller", "--queued 0,-1", "'-1' is not a whole number of at least 0"),
        ("controller", "--seconds 0.5", "'0.5' is not a number of at least 1 s"),
        ("scale", "--directory /dev/null/x", "'/dev/null/x' cannot be made a directory: Not a directory"),
        ("submit", "--queued 0,many", "'many' is not a whole number of at least 0"),
        ("diagnose", "--data nowhere", "there is no file nowhere/straggler/trace-ST.parquet"),
        ("placement", "--data nowhere", "nowhere/openb_node_list_gpu_node.csv: No such file"),
        ("forecast", "--data nowhere", "forecast.py: nowhere: is not a folder"),
        ("forecast", "--data . --last 0", "'0' is not a whole number of at least 1"),
        ("colocation", "--data nowhere.csv", "colocation.py: nowhere.csv: cannot be read: No such file"),
        ("colocation", "--slowed 2", "'2' is not a fraction from 0 to 1"),
        ("colocation_predictor", "--data nowhere.csv", "nowhere.csv: cannot be read: No such file"),
        ("colocation_predictor", "--generated 1:4", "'4' is not a whole number of at least 5"),
        ("submit", "--rules 3", "'3' is not a whole number of at least 4"),
        ("real_gpu", "--seconds nan", "'nan' is not a number of at least 2 s"),
        ("plain_loops", "fork", "usage: "),
    ],
)
def test_invalid_arguments_are_named(
    script: str, words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run scripts in this process, since their imports take longer than everything else."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *words.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCH / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
