"""Provide slurm-gpu's commands in the lab's bin directory, for users who cannot read the installation.

Users such as alice cannot read a checkout or an interpreter in root's home. Such directories are
bind-mounted, read-only, into the lab's own directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lab.errors import LabError
from lab.layout import INSTALLED_VARIABLE, REPOSITORY, Layout
from lab.polling import wait_for

# Command → module whose function main() returns the exit code.
PROGRAMS = {
    "slurm-gpu": "slurm_gpu.cli.main",
    "slurm-gpuctld": "slurm_gpu.controller.main",
    "slurm-gpud": "slurm_gpu.node.main",
    "slurm-gpudbd": "slurm_gpu.database.main",
    "slurm-gpuweb": "slurm_gpu.monitor.main",
}

# Command → path at which packages install the command.
INSTALLED = {
    "slurm-gpu": "/usr/bin/slurm-gpu",
    "slurm-gpuctld": "/usr/sbin/slurm-gpuctld",
    "slurm-gpud": "/usr/sbin/slurm-gpud",
    "slurm-gpudbd": "/usr/sbin/slurm-gpudbd",
    "slurm-gpuweb": "/usr/sbin/slurm-gpuweb",
}


def install(layout: Layout) -> None:
    """Write one executable per command."""
    interpreter = Path(sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    seen_prefix = _view(layout, prefix, "python")
    path = [
        _view(layout, REPOSITORY, "repository"),
        _view(layout, Path(sysconfig.get_path("purelib")), "site-packages"),
    ]
    python = seen_prefix / interpreter.relative_to(prefix)
    start = f"{_libraries(prefix, seen_prefix)}exec {python}"
    for name, module in PROGRAMS.items():
        if INSTALLED_VARIABLE in os.environ:
            _write(layout.bin / name, f"exec {INSTALLED[name]}")
            continue
        main = layout.root / "programs" / f"{name}.py"
        main.parent.mkdir(exist_ok=True)
        main.write_text(f"import sys\nsys.argv[0] = {name!r}\nfrom {module} import main\nsys.exit(main())\n")
        # Set PYTHONPATH rather than sys.path, so that programs started by a command also find the modules.
        found = f"export PYTHONPATH={':'.join(map(str, path))}\n"
        _write(layout.bin / name, f"{found}{start} -SP {main}")
    # Job scripts start simgpu often, and it starts faster without site packages.
    _write(layout.bin / "simgpu", f"{start} -IS {path[0]}/lab/simgpu/__main__.py")


def _write(command: Path, start: str) -> None:
    command.write_text(f'#!/bin/sh\n{start} "$@"\n')
    command.chmod(0o755)


def _libraries(prefix: Path, seen_prefix: Path) -> str:
    """Return a line that sets the path of libpython, since users cannot read the interpreter's own path."""
    if seen_prefix == prefix:
        return ""
    return f'export LD_LIBRARY_PATH="{seen_prefix}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'


def _view(layout: Layout, directory: Path, name: str) -> Path:
    """Return ``directory`` if all users can read it, otherwise the path of a mount that they can read."""
    if _open_to_all(directory):
        return directory
    target = layout.root / "view" / name
    target.mkdir(parents=True, exist_ok=True)
    if not target.is_mount():
        result = subprocess.run(
            ["mount", "--bind", "-o", "ro", str(directory), str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise LabError(
                f"{directory} cannot be read by the lab's users and cannot be mounted for them "
                f"({result.stderr.strip()}); move it to a directory that all users can read, such as /opt"
            )
    return target


def _open_to_all(directory: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (directory, *directory.parents))


def users_of(target: Path) -> Iterator[int]:
    """Return the processes whose program or working directory is below a directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            places = [(process / "exe").readlink(), (process / "cwd").readlink()]
            if any(place.is_relative_to(target) for place in places):
                yield int(process.name)


def unmount(layout: Layout) -> None:
    """Unmount everything, so that removing the lab's directory removes no mounted files.

    Threads of a killed process may keep files open for a moment after the process has disappeared.
    """

    def none_left() -> bool:
        for target in mounts(layout):
            subprocess.run(["umount", str(target)], check=False, capture_output=True)
        return not mounts(layout)

    def left() -> str:
        still = mounts(layout)
        users = ", ".join(map(str, sorted({pid for target in still for pid in users_of(target)})))
        reason = f" (used by process {users}: end it, then run lab/down again)" if users else ""
        return f"cannot unmount {', '.join(map(str, still))}{reason}; nothing below it was removed"

    wait_for(none_left, 10.0, "the lab's mounts are undone", left)


def mounts(layout: Layout) -> list[Path]:
    """Return the mount points in the lab's directory, innermost first."""
    targets = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((target for target in targets if target.is_relative_to(layout.root)), reverse=True)
