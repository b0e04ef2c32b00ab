"""The completion scripts of slurm-gpu work in their shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.cli.main import SUMMARIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completion")
    command = [sys.executable, ROOT / "packaging/completion", directory]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, cwd=directory)
    return directory


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose PATH contains slurm-gpu."""
    command = tmp_path_factory.mktemp("bin") / "slurm-gpu"
    start = f"import sys; sys.path.insert(0, '{ROOT}'); from slurm_gpu.cli.main import main; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o755)
    return {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(command.parent),
        "LC_ALL": "C.UTF-8",
    }


def shell(commands: dict[str, str], *command: str) -> list[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    done = subprocess.run(command, env=commands, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


def test_each_shell_has_a_script_with_the_expected_name(completion: Path) -> None:
    assert {path.name for path in completion.iterdir()} == {"slurm-gpu", "_slurm-gpu", "slurm-gpu.fish"}


def test_bash_offers_commands_and_options(completion: Path, commands: dict[str, str]) -> None:
    script = f"""
    . {completion}/slurm-gpu
    complete -p slurm-gpu >/dev/null
    for line in "slurm-gpu " "slurm-gpu jobs --c"; do
        IFS=' ' read -ra COMP_WORDS <<<"$line"
        [ "${{line% }}" = "$line" ] || COMP_WORDS+=("")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
        _slurm_gpu_completion slurm-gpu
        printf '%s\\n' "${{COMPREPLY[@]}}"
    done
    """
    assert shell(commands, "bash", "--norc", "-c", script) == [*SUMMARIES, "--csv"]


def test_zsh_offers_commands_with_what_they_do(completion: Path, commands: dict[str, str]) -> None:
    script = f"""
    autoload() {{ : }}
    compdef() {{ [[ $2 == slurm-gpu ]] }}
    _describe() {{ print -l -- ${{(P)3}} }}
    compadd() {{ print -l -- ${{(P)argv[-1]}} }}
    words=(slurm-gpu jo) CURRENT=2
    . {completion}/_slurm-gpu
    _slurm_gpu_completion
    """
    offered = shell(commands, "zsh", "-f", "-c", script)
    assert offered == [f"{name}:{SUMMARIES[name]}" for name in ("job", "jobs")]


def test_fish_offers_commands_with_what_they_do(completion: Path, commands: dict[str, str]) -> None:
    script = f"source {completion}/slurm-gpu.fish; complete --do-complete 'slurm-gpu jo'"
    offered = shell(commands, "fish", "--no-config", "-c", script)
    assert sorted(offered) == sorted(f"{name}\t{SUMMARIES[name]}" for name in ("job", "jobs"))
