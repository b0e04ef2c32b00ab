"""File trees into which packages are installed and in which their programs run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_WITH_SYSTEM = Path(__file__).with_name("with-system")


class Tree:
    """A root directory that at first contains only the names of users.

    rpm, the scriptlets and other programs use this machine's shell, Python 3.11 and glibc in the tree, and no
    other files of this machine. `system` is a package that provides what our packages require of a system.
    """

    def __init__(self, root: Path, system: Path) -> None:
        self.root = root
        for directory in ("etc", "run", "var/lib/rpm"):
            (root / directory).mkdir(parents=True)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nslurm:x:64030:64030::/:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nslurm:x:64030:\n")
        self.rpm("-U", system)

    def rpm(self, *arguments: str | Path) -> str:
        """Run rpm on the tree, and return the output of rpm and of the scriptlets."""
        done = self._run(["rpm", "--root", self.root, "--nosignature", *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the tree."""
        return self._run(["chroot", self.root, *argv])

    def start(self, *argv: str | Path) -> subprocess.Popen[str]:
        """Start a command in the tree; killing the returned process kills it."""
        return subprocess.Popen(
            self._isolated(["chroot", self.root, *argv], "--pid", "--fork", "--kill-child"),
            stderr=subprocess.PIPE,
            text=True,
            env=_ENVIRONMENT,
        )

    def forget_system(self) -> None:
        """Remove the empty files over which this machine's commands are mounted."""
        for path in (self.root / "usr/bin").iterdir():
            if path.stat().st_size == 0:
                path.unlink()

    def _run(self, argv: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._isolated(argv), capture_output=True, text=True, check=False, timeout=120, env=_ENVIRONMENT
        )

    def _isolated(self, argv: Sequence[str | Path], *flags: str) -> list[str | Path]:
        return ["unshare", "--mount", "--propagation", "private", *flags, _WITH_SYSTEM, self.root, *argv]


_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
