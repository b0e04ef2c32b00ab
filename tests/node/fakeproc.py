"""Fake /proc, cgroup and class trees, written file by file."""

from __future__ import annotations

from pathlib import Path


class FakeProc:
    """A fake /proc whose processes a test defines."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def process(
        self,
        pid: int,
        *,
        ppid: int = 1,
        own: int = 0,
        children: int = 0,
        io: tuple[int, int] | None = (0, 0),
        started: int = 100,
        pages: int = 0,
        environ: bytes = b"",
        cgroup: str | None = None,
        uid: int = 1001,
        euid: int | None = None,
        name: str = "a) b",
    ) -> Path:
        """Write or rewrite one process and return its directory; times are in ticks.

        `uid` appears only in `status`; the files belong to the user that runs the tests.
        """
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        fields = ["S", ppid, *[0] * 9, own, 0, children, 0, 0, 0, 0, 0, started, 1 << 20, pages, 0]
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        if io is not None:
            (directory / "io").write_text(f"rchar: 9\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")
        (directory / "environ").write_bytes(environ)
        effective = uid if euid is None else euid
        (directory / "status").write_text(f"Name:\t{name}\nUid:\t{uid}" + f"\t{effective}" * 3 + "\n")
        if cgroup is not None:
            (directory / "cgroup").write_text(cgroup + "\n")
        return directory

    def end(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
