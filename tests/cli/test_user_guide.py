"""docs/user-guide.md shows real output, and names existing commands and options."""

import shlex

import click
from msgspec import structs

from slurm_gpu.cli.main import cli
from slurm_gpu.wire import DeviceFacts, Mean, Total
from tests.cli.conftest import CommandLine, make_record, make_run
from tests.docs.pages import DOCS, code_spans, fences

_PAGE = DOCS / "user-guide.md"
_SHOWN = {text.partition("\n")[0]: text for _, text in fences(_PAGE, "console")}


def test_output_is_copied_from_pages_with_tested_output():
    pages = ("policies/course.jobs", "forecast.md", "diagnose.md")
    elsewhere = "".join((DOCS / name).read_text() for name in pages)
    for first, text in _SHOWN.items():
        if first not in ("$ slurm-gpu quota", "$ slurm-gpu job 17"):
            assert text.partition("\n")[2] in elsewhere, first


def test_the_output_of_job_is_that_of_the_command(slurm_gpu: CommandLine):
    used = make_record("GPU-aaaaaaaa-1111")
    nothing = Mean(3600, 0, 0, 0)
    idle = make_record(
        "GPU-bbbbbbbb-2222",
        util_hist_ms={0: 3_600_000},
        no_process_s=3600.0,
        mem_used_mib=nothing,
        mem_used_frac=nothing,
        power_w=Mean(3600, 60, 50, 60),
        energy_j=Total(3600, 216_000),
    )
    run = make_run(devices=(used, idle), ugpucore=10.0, ugpumem=5.0, coverage=1.0, energy_j=576_000.0)
    facts = {
        one.device: DeviceFacts(uuid=one.device, node="n1", at_s=1, index=index)
        for index, one in enumerate((used, idle))
    }
    slurm_gpu.database.runs = [structs.replace(run, device_facts=facts)]
    slurm_gpu("job", "17")
    assert slurm_gpu.out.startswith(_SHOWN["$ slurm-gpu job 17"].partition("\n")[2])


def test_commands_and_options_exist():
    lines = {*code_spans(_PAGE), *(first.removeprefix("$ ") for first in _SHOWN)}
    named = [words for line in lines if (words := shlex.split(line))[:1] == ["slurm-gpu"]]
    assert len(named) > 12
    context = click.Context(cli)
    for words in named:
        command: click.Command = cli
        for word in words[1:]:
            found = command.get_command(context, word) if isinstance(command, click.Group) else None
            if found is None:
                break
            command = found
        # `forecast` is a group, but also a command for a job ID or an sbatch command line.
        needs_command = isinstance(command, click.Group) and command.name != "forecast"
        assert needs_command is (words[1] == "COMMAND"), words
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        ours = words[: words.index("--")] if "--" in words else words
        assert {word for word in ours if word.startswith("--")} <= options, words
