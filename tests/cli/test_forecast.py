"""`slurm-gpu forecast`: what it says of a job that waits, and of what has no forecast."""

import json

import numpy as np
import pytest

from slurm_gpu.policy.gpuforms import asked_in_all
from slurm_gpu.policy.sbatch import parse_command
from tests.cli.conftest import CommandLine, make_run
from tests.slurm.recorded import NOW_S


def history(n: int = 300, wait_s: float = 1800.0):
    """Jobs of the last ten days that waited half an hour each, give or take."""
    rng = np.random.default_rng(0)
    runs = []
    for number in range(n):
        eligible_s = int(NOW_S - 10 * 86400 * (number + 1) / n - 7200)
        start_s = eligible_s + int(wait_s * 2 ** rng.normal(0, 0.4))
        runs.append(
            make_run(
                id=str(100 + number),
                job_id=100 + number,
                submit_s=eligible_s,
                eligible_s=eligible_s,
                start_s=start_s,
                end_s=start_s + 600,
                time_limit_s=int(rng.integers(1, 9)) * 3600,
                n_gpus_requested=2.0,
            )
        )
    return runs


def waiting(**changes):
    """Job 17, submitted a moment ago."""
    return make_run(
        state="PENDING",
        submit_s=NOW_S,
        eligible_s=NOW_S,
        start_s=None,
        end_s=None,
        elapsed_s=None,
        wait_h=None,
        run_h=None,
        n_gpus=None,
        n_gpus_requested=2.0,
        nodes="",
        **changes,
    )


def test_a_waiting_job_is_told_an_interval_and_how_near_such_ones_were(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [waiting(), *history()]
    code, out = slurm_gpu("forecast", "17"), slurm_gpu.out
    assert code == 0
    assert out.startswith("job 17 starts in ")
    assert "within twice the truth" in out
    code, out = slurm_gpu("forecast", "--json", "17"), slurm_gpu.out
    answer = json.loads(out)
    assert answer["low_s"] < 1800 < answer["high_s"]
    assert answer["accuracy"]["within_2x"] > 0.8


def test_with_little_history_it_says_so(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [waiting(), *history(8)]
    code, out = slurm_gpu("forecast", "17"), slurm_gpu.out
    assert code == 0
    assert "take it as a guess" in out


def test_without_history_there_is_no_forecast(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [waiting()]
    code, out = slurm_gpu("forecast", "17"), slurm_gpu.out
    assert (code, out) == (1, "no forecast: no job that waited is on record yet\n")


def test_a_job_that_has_started_is_told_how_long_it_waited(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run()]
    code, err = slurm_gpu("forecast", "17"), slurm_gpu.err
    assert code == 2
    assert "job 17 does not wait: it is COMPLETED; it waited" in err


def test_an_unknown_job_is_told_where_to_look(slurm_gpu: CommandLine):
    code, err = slurm_gpu("forecast", "4711"), slurm_gpu.err
    assert code == 2
    assert "squeue -j 4711" in err


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus=3", 3),
        ("--gpus-per-node=2 --nodes=3", 6),
        ("--gres=gpu:a100:4", 4),
        ("--gpus-per-task=2 --ntasks=4", 8),
        ("--gres=gpu:a100:1,gpu:v100:2", 3),
        ("--gres=gpu", 1),
        ("--cpus-per-task=8", 0),
    ],
)
def test_the_gpus_of_a_command_are_counted(options: str, gpus: int):
    request = parse_command(["sbatch", *options.split(), "--wrap=true"], {})
    assert asked_in_all(request.description(0, "root")) == gpus


def test_words_that_are_neither_job_nor_command_are_refused(slurm_gpu: CommandLine):
    assert slurm_gpu("forecast", "17", "18") == 2
    assert "write the id of one job" in slurm_gpu.err
