"""`python packaging/completion DIRECTORY`: write the completion scripts for bash, zsh and fish.

Click generates the scripts, which call `slurm-gpu` for each completion, so they are never outdated. Starting
a shell does not call `slurm-gpu`, unlike `eval "$(…)"` in a profile.
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from slurm_gpu.cli.main import cli

_NAME = "slurm-gpu"
_VARIABLE = "_SLURM_GPU_COMPLETE"
# The names that bash-completion, zsh's site-functions and fish's vendor_completions.d expect.
FILES = {"bash": _NAME, "zsh": f"_{_NAME}", "fish": f"{_NAME}.fish"}


def main(directory: Path) -> None:
    """Write one file for each shell."""
    directory.mkdir(parents=True, exist_ok=True)
    for shell, name in FILES.items():
        make = get_completion_class(shell)
        assert make is not None, shell
        script = make(cli, {}, _NAME, _VARIABLE).source()
        # The help text of a command may contain commas, too: split only at the first one.
        script = script.replace('string split "," $completion', 'string split --max 1 "," $completion')
        (directory / name).write_text(script, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python packaging/completion DIRECTORY")
    main(Path(sys.argv[1]))
