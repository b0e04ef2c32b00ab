"""Create file trees of hosts for `place` and `place-lua`, and check the results of these scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACE, PLACE_LUA = (ROOT / "packaging" / "hooks" / name for name in ("place", "place-lua"))
SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/bin/busybox") if Path(shell).exists()]
KINDS = ("prolog", "epilog")

_CANNOT = 77
_OVER = f'mount -t overlay -o "ro,lowerdir=$0:/usr/bin" programs /usr/bin || exit {_CANNOT}; exec "$@"'
_STAT = """\
#!/bin/sh
case " $* " in
*" -f "*) echo '{filesystem}' ;;
*) exec {real} "$@" ;;
esac
"""


class Tree:
    """The file tree of a host with the hooks of the package, and the script under test."""

    def __init__(self, root: Path, script: Path = PLACE, shell: str = "/bin/sh") -> None:
        self.root, self.script, self.shell = root, script, shell
        self.slurm = root / "etc" / "slurm"
        self.hook = {
            "prolog": self.slurm / "prolog.d" / "10-slurm-gpu",
            "epilog": self.slurm / "epilog.d" / "90-slurm-gpu",
        }
        self.texts = root / "usr" / "libexec" / "slurm-gpu" / "hooks"
        self.texts.mkdir(parents=True)
        for kind in KINDS:
            shutil.copy(ROOT / kind / "10-slurm-gpu", self.texts / kind)
        self._programs = root.with_name(f"{root.name}-programs")

    def has(self, programs: Mapping[str, str | None]) -> None:
        """Replace programs of /usr/bin for the script only, which requires root; None hides a program."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root and unshare")
        self._programs.mkdir(exist_ok=True)
        for name, text in programs.items():
            (self._programs / name).write_text(text or "")
            (self._programs / name).chmod(0o644 if text is None else 0o755)

    def set_filesystem(self, filesystem: str) -> None:
        """Make `stat -f` report this type of file system for every file."""
        real = self.root.with_name("stat")
        shutil.copy("/usr/bin/stat", real)
        self.has({"stat": _STAT.format(filesystem=filesystem, real=real)})

    def __call__(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        shell = [self.shell, "sh"] if self.shell.endswith("busybox") else [self.shell]
        options = [] if self.script is PLACE_LUA else [f"--texts={self.texts}"]
        over = ["unshare", "-m", "sh", "-c", _OVER, self._programs] if self._programs.exists() else []
        done = subprocess.run(
            [*over, *shell, self.script, *words, f"--root={self.root}", *options],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode == _CANNOT:
            pytest.skip("cannot mount here")
        return done

    def done(self, *words: str) -> str:
        """Run the script, which must succeed, and return its output."""
        done = self(*words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """Run the script, which must refuse, and return its error."""
        done = self(*words)
        assert done.returncode == 1
        return done.stderr


def is_hook(tree: Tree, kind: str) -> bool:
    """Return whether a hook has the text of the package and one signature."""
    placed = tree.hook[kind].read_text()
    return placed.startswith((tree.texts / kind).read_text()) and placed.count("\n# Placed by") == 1


def is_stub(tree: Tree, kind: str) -> bool:
    """Return whether a hook is the working stub that a removal leaves."""
    assert runs(tree.hook[kind]).returncode == 0
    return "was removed" in tree.hook[kind].read_text().splitlines()[1]


def runs(hook: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a hook as slurmd does and return the result."""
    return subprocess.run([hook], env=environ, capture_output=True, text=True, check=False, timeout=20)


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return path.stat().st_mode & 0o7777


def inside(tree: Tree, path: Path) -> Path:
    """Return the path as seen on the host."""
    return Path("/") / path.relative_to(tree.root)


def changed(path: Path) -> tuple[int, int, int]:
    """Return inode, modification time and change time of a file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
