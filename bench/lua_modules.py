"""Copy the Lua modules of job_submit without some of them, to measure the cost of the omitted modules."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu.policy.lua.bundle import lua_directory


def copy_without(directory: Path, left_out: Sequence[str]) -> None:
    """Copy all modules except these, which no other module requires or runs, to a new directory."""
    shutil.copytree(lua_directory(), directory)
    for name in left_out:
        (directory / f"{name}.lua").unlink()
        for file in directory.glob("*.lua"):
            in_list = rf"(?m)^(-- requires: .*?)(?:, {name}\b|\b{name}, )|^  lib\.{name},\n"
            file.write_text(re.sub(in_list, r"\1", file.read_text()))
