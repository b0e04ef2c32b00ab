"""Requests for GPUs in several forms are completed or refused as by sbatch in Slurm 22.05."""

from __future__ import annotations

import shlex

import pytest

from slurm_gpu.policy.explain.sbatch import SbatchRequest, parse_command

FIELDS = ("min_nodes", "max_nodes", "num_tasks", "ntasks_per_node")


def request(words: str) -> SbatchRequest:
    return parse_command(["sbatch", *shlex.split(words), "--wrap=true"], {})


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("--gpus=8 --gpus-per-node=4", (2, 2, None, None)),
        ("--gpus=8 --gres=gpu:4", (2, 2, None, None)),
        ("--gpus=8 --gpus-per-task=2", (None, None, 4, None)),
        ("--gpus=8 --gpus-per-node=4 --gpus-per-task=2", (2, 2, 4, 2)),
        ("--gpus=8 --gpus-per-node=4 -n3", (2, 2, 3, None)),
        ("-N1-3 --gpus=8 --gpus-per-node=4", (2, 2, None, None)),
        ("-N2-8 --gpus=4", (2, 4, None, None)),
        ("-N2", (2, 2, None, None)),
        ("-N2 --gpus-per-task=1", (2, 2, 2, None)),
        ("-N2 --ntasks-per-node=2 --gpus-per-task=1", (2, 2, 4, 2)),
        ("--ntasks-per-node=2 --gpus-per-task=1", (None, None, 2, 2)),
        ("-N2 --gpus-per-node=4 --gpus-per-task=2", (2, 2, 2, 2)),
        ("-n8 --gpus-per-node=4 --gpus-per-task=1", (None, None, 8, 4)),
        ("-n8 --ntasks-per-gpu=2", (None, None, 8, None)),
        ("--gpus=4 --ntasks-per-gpu=2", (None, None, 8, None)),
        ("--gpus=4 -n6 --ntasks-per-gpu=2", (None, None, 8, None)),
        ("-N2 --gpus-per-node=2 --ntasks-per-gpu=2", (2, 2, 8, None)),
    ],
)
def test_missing_options_are_derived(words: str, filled: tuple[int | None, ...]) -> None:
    description = request(words).description(1001, "alice")
    assert tuple(description.get(name) for name in FIELDS) == filled
    assert request(words).mistakes() == []


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ("--gpus=9 --gpus-per-node=4", "--gpus=9 is not a multiple of --gpus-per-node=4; use --gpus=8"),
        ("--gpus=2 --gpus-per-node=4", "--gpus=2 is not a multiple of --gpus-per-node=4; use --gpus=4"),
        ("--gpus=4 --gpus-per-task=3", "--gpus=4 is not a multiple of --gpus-per-task=3; use --gpus=3"),
        (
            "-n4 --gpus-per-node=4 --gpus-per-task=3",
            "--gpus-per-node=4 is not a multiple of --gpus-per-task=3; use --gpus-per-node=3",
        ),
        ("-N3 --gpus=8 --gpus-per-node=4", "--gpus=8 and --gpus-per-node=4 imply --nodes=2, not --nodes=3"),
        ("-N3-5 --gpus=8 --gres=gpu:4", "--gpus=8 and --gres=gpu:4 imply --nodes=2, not --nodes=3-5"),
        ("-N4 --gpus=2", "--gpus=2 is less than --nodes=4: each node needs a GPU"),
        ("-n4 --gpus=8 --gpus-per-task=1", "--gpus=8 and --gpus-per-task=1 imply --ntasks=8, not --ntasks=4"),
        (
            "-n4 --ntasks-per-node=1 --gpus-per-node=4 --gpus-per-task=2",
            "--gpus-per-node=4 and --gpus-per-task=2 imply --ntasks-per-node=2, not 1",
        ),
        ("--gpus-per-task=1", "--gpus-per-task also requires --ntasks, --nodes or --gpus"),
        ("--gpus-per-socket=2", "--gpus-per-socket also requires --sockets-per-node"),
        (
            "-n2 --gpus-per-task=1 --ntasks-per-gpu=2",
            "--gpus-per-task and --ntasks-per-gpu cannot be combined",
        ),
        (
            "--gpus=a100:2 --gpus-per-node=2",
            "--gpus and --gpus-per-node: either all options or none must name a GPU type, such as a100:1",
        ),
        ("--mem=1G --mem-per-cpu=1G", "--mem and --mem-per-cpu cannot be combined: use only one of them"),
        (
            "--gpus=1 --cpus-per-gpu=2 --cpus-per-task=2",
            "--cpus-per-task and --cpus-per-gpu cannot be combined: use only one of them",
        ),
    ],
)
def test_inconsistent_forms_are_refused(words: str, mistake: str) -> None:
    assert mistake in request(words).mistakes()
    request(words).description(1001, "alice")


@pytest.mark.parametrize("words", ["--gpus=a100:2,v100:1", "--gres=gpu:2,shard:1", "--gpus=0", "-N4", ""])
def test_a_request_in_one_form_has_no_mistakes(words: str) -> None:
    assert request(words).mistakes() == []
