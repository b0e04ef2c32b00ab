"""Every option for a number, a time or a name either accepts a text or refuses it with a message."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import pytest

from slurm_gpu.cli.main import cli
from slurm_gpu.errors import UsageError
from tests.cli.conftest import CommandLine, Database, make_run
from tests.monitor.clusters import cluster, holds, job, node, waiting
from tests.odd_numbers import TEXTS

_UNITS = ("", "d", "h", "M", "G", "-0", ":0:0")
_FILES = (click.Path, click.File, click.Choice)
_OF_SBATCH = (
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "cpus-per-gpu",
    "mem",
    "mem-per-gpu",
    "mem-per-cpu",
    "time",
    "time-min",
    "array",
    "nodelist",
    "begin",
)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(cli))


def _texts(command: click.Command) -> list[click.Parameter]:
    others = (*_FILES, click.types.BoolParamType)
    return [
        one
        for one in command.params
        if not isinstance(one.type, others) and not getattr(one, "is_flag", False)
    ]


def _given(one: click.Parameter, text: str) -> list[str]:
    return [text] if isinstance(one, click.Argument) else [f"{max(one.opts, key=len)}={text}"]


@pytest.fixture
def filled(slurm_gpu: CommandLine, tmp_path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu.database.cluster_state = cluster([node("n1", holds(7, 0))], [job(7), waiting(8)])
    for name in ("forecast", "forecast_asked", "decide_reservation", "request_reservation"):
        monkeypatch.setattr(Database, name, _refuse, raising=False)
    return slurm_gpu


def _refuse(*_: object, **__: object) -> None:
    raise UsageError("slurm-gpudbd answered 400")


def _check_exit(slurm_gpu: CommandLine, argv: list[str]) -> None:
    if any("\0" in word for word in argv):
        return  # arguments of programs cannot contain NUL
    code = slurm_gpu(*argv)
    result = f"{[word[:60] for word in argv]}: {code} {slurm_gpu.err[:400]}"
    assert code in (0, 1, 2, 3), result
    assert "SLURM_GPU_DEBUG" not in slurm_gpu.err, result
    assert len(slurm_gpu.err) < 20_000, result


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if _texts(command)])
def test_any_text_is_accepted_or_refused(filled: CommandLine, name: str) -> None:
    command = COMMANDS[name]
    for one in _texts(command):
        needed = [
            word
            for other in command.params
            if other.required and other is not one
            for word in _given(other, os.devnull if isinstance(other.type, _FILES) else "1")
        ]
        for text in TEXTS:
            for unit in _UNITS if isinstance(one.type, click.types.StringParamType) else ("",):
                _check_exit(filled, [*name.split(), *needed, *_given(one, text + unit)])


@pytest.mark.parametrize("option", _OF_SBATCH)
def test_any_option_of_sbatch_is_explained_or_refused(filled: CommandLine, option: str) -> None:
    for text in TEXTS:
        for before in ("", "gpu:", "a100:"):
            for unit in ("", "G", ":0:0"):
                _check_exit(filled, ["explain", "--", "sbatch", f"--{option}={before}{text}{unit}", "x.sh"])
