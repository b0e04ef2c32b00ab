"""Manual pages contain all commands, options and keys, and man accepts them without warnings."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from slurm_gpu import __version__
from slurm_gpu.cli.main import cli
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.controller.main import make_parser as gpuctld_parser
from slurm_gpu.database.main import make_parser as gpudbd_parser
from slurm_gpu.monitor.main import make_parser as gpuweb_parser
from slurm_gpu.node.application.command import make_parser as applications_parser
from slurm_gpu.node.main import make_parser as gpud_parser
from slurm_gpu.notices.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
EPOCH = "1790000000"
DAEMONS = {
    "slurm-gpud": (gpud_parser, applications_parser),
    "slurm-gpudbd": (gpudbd_parser,),
    "slurm-gpuctld": (gpuctld_parser,),
    "slurm-gpuweb": (gpuweb_parser,),
}


@pytest.fixture(scope="module")
def man(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man")
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SOURCE_DATE_EPOCH": EPOCH,
        "SLURM_GPU_CONF": "/home/maker/slurm-gpu.yaml",
    }
    command = [sys.executable, ROOT / "packaging/man", directory]
    subprocess.run(command, env=environ, check=True, cwd=directory)
    return directory


def page(man: Path, name: str) -> str:
    """Return the words of a page without markup."""
    text = (man / f"man{name[-1]}" / name).read_text()
    return re.sub(r"\\f[BIPR]", "", text).replace("\\-", "-").replace("\\(aq", "'")


def commands(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        yield (*above, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)


COMMANDS = dict(commands(cli))  # type: ignore[arg-type]


def test_the_page_of_slurm_gpu_names_every_command(man: Path) -> None:
    text = page(man, "slurm-gpu.1")
    for name, *inner in COMMANDS:
        if not inner:
            assert f"See slurm-gpu-{name}(1)." in text
    assert "--config FILE" in text


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_is_in_its_page(man: Path, path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    text = page(man, f"slurm-gpu-{path[0]}.1")
    if not isinstance(command, click.Group) or command.invoke_without_command:
        assert f"slurm-gpu {' '.join(path)} [OPTIONS]" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert all(option in text for option in parameter.opts), parameter.opts
            # Compare only the first words, because lines are wrapped differently.
            assert (parameter.help or "").replace("`", "")[:20] in text
        if isinstance(parameter.envvar, str):
            assert parameter.envvar in text


def test_commands_of_commands_are_found_under_their_own_names(man: Path) -> None:
    for path in COMMANDS:
        if len(path) > 1:
            link = (man / "man1" / f"slurm-gpu-{'-'.join(path)}.1").read_text()
            assert link == f".so man1/slurm-gpu-{path[0]}.1\n"


@pytest.mark.parametrize("name", DAEMONS)
def test_every_option_of_a_daemon_is_in_its_page(man: Path, name: str) -> None:
    text = page(man, f"{name}.8")
    for make_parser in DAEMONS[name]:
        for action in make_parser()._actions:
            assert all(option in text for option in action.option_strings)


NOTICES = {item.name for item in fields(Settings)}


def test_every_key_of_a_file_is_in_its_page(man: Path) -> None:
    site = {item.name.removesuffix("_s") for item in fields(SiteConfig)}
    policy = json.loads((ROOT / "etc/policy.schema.json").read_text())["properties"]
    for name, keys in (
        ("slurm-gpu.yaml.5", site),
        ("slurm-gpudbd.yaml.5", ["url", "listen"]),
        ("slurm-gpuweb.yaml.5", ["url", "listen", "refresh"]),
        ("policy.yaml.5", policy),
        ("notices.yaml.5", [one.removesuffix("_s") for one in NOTICES]),
    ):
        terms = re.findall(r"^\.B (.*)$", page(man, name), re.MULTILINE)
        assert set(keys) <= {key for term in terms for key in term.split(", ")}, name


def test_every_page_that_is_referred_to_is_there(man: Path) -> None:
    there = {path.name for path in man.glob("man*/*")}
    for path in sorted(man.glob("man*/*")):
        for name, section in re.findall(
            r"(slurm-gpu[a-z.-]*|policy\.yaml|notices\.yaml)\((\d)\)", page(man, path.name)
        ):
            assert f"{name}.{section}" in there, path.name


def test_every_example_is_a_command_as_it_may_be_written(
    man: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = []
    for path in man.glob("man1/*"):
        for line in page(man, path.name).splitlines():
            if re.match(r"slurm-gpu [a-z]+", line) and "(1)" not in line and "[" not in line:
                examples.append(line)
    assert len(examples) > 8
    for example in examples:
        ours, _, _ = example.partition(" | ")  # another command may read the output
        words = tuple(shlex.split(ours)[1:])
        for file in filter(re.compile(r"[\w-]+\.(csv|json|npz|parquet)").fullmatch, words):
            Path(file).touch()  # some commands require existing files
        path = words[:2] if words[:2] in COMMANDS else words[:1]
        command = COMMANDS[path]
        with click.Context(command, **command.context_settings) as context:
            command.parse_args(context, list(words[len(path) :]))  # wrong usage raises an error


def test_pages_do_not_depend_on_the_builder(man: Path) -> None:
    text = page(man, "slurm-gpud.8")
    assert "2026-09-21" in text
    assert __version__ in text
    assert "(default /etc/slurm-gpu/slurm-gpu.yaml)" in text
    assert os.uname().nodename.partition(".")[0] not in text.split() or os.uname().nodename in (
        "node",
        "host",
    )


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
def test_groff_warns_of_nothing(man: Path) -> None:
    for path in sorted(man.glob("man*/*")):
        if not path.read_text().startswith(".so "):
            done = subprocess.run(
                ["groff", "-Kutf8", "-ww", "-man", "-Tutf8", "-rLL=80n", path],
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stderr == "", path.name


@pytest.mark.skipif(shutil.which("lexgrog") is None, reason="man-db is not installed here")
def test_apropos_finds_every_page(man: Path) -> None:
    for path in sorted(man.glob("man*/*")):
        if not path.read_text().startswith(".so "):
            done = subprocess.run(["lexgrog", path], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout
            assert f'"{path.stem} - ' in done.stdout
