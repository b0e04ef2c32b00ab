"""Reads decisions.log from where it was last read on, wherever the file is moved meanwhile."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slurm_gpu.controller.run_file import write_run_file

MARK_FILE = "shipped.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """The position up to which the log was read: a file, by device and inode, and a byte offset.

    `last` is the id of the decision that was shipped last; None where none was, or it is not known.
    """

    device: int
    inode: int
    offset: int
    last: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A whole line, and where it stood: two lines that say the same are two."""

    inode: int
    offset: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines in a row, and the mark behind them."""

    lines: tuple[LogLine, ...]
    mark: Mark
    lost: bool = False
    """Whether lines were moved away twice, and so removed, before they were read."""


class DecisionLog:
    """The log and the one before it, `.1`. The mark outlives this process, and lies in memory as they do."""

    def __init__(self, log: Path, mark: Path) -> None:
        self._log, self._mark_path = log, mark
        self._mark = _read_mark(mark)

    def next(self, most_bytes: int, most_lines: int) -> Piece | None:
        """What comes behind the mark; None where nothing does. Raises OSError where it cannot be read."""
        lost = False
        files = self._files()
        if self._mark is None and files:
            # At once: what is moved away twice before anything could be shipped is lost as well.
            self._put_mark(Mark(files[0][1].device, files[0][1].inode, 0))
        if self._mark is not None:
            known = [place for place, (_, mark) in enumerate(files) if _same(mark, self._mark)]
            lost = bool(files) and not known
            files = files[known[0] :] if known else files
        for place, (path, mark) in enumerate(files):
            is_last = place == len(files) - 1
            begin = self._mark.offset if self._mark is not None and _same(mark, self._mark) else 0
            if begin > mark.offset:
                begin = 0  # somebody emptied it
            piece = _piece(path, mark, begin, (most_bytes, most_lines), is_last=is_last)
            if piece is None:
                return self.next(most_bytes, most_lines)  # it was moved just now
            if piece.lines or lost:
                return Piece(piece.lines, piece.mark, lost)
        return None

    @property
    def last(self) -> str | None:
        """Return the id of the decision that was shipped last."""
        return None if self._mark is None else self._mark.last

    def done(self, piece: Piece, last: str | None = None) -> None:
        """What this piece holds is where it belongs; raises OutsideError where that cannot be written."""
        self._put_mark(replace(piece.mark, last=self.last if last is None else last))

    def restart(self) -> None:
        """Read again from the beginning, as slurm-gpudbd has lost shipped decisions."""
        self._mark = None

    def _put_mark(self, mark: Mark) -> None:
        self._mark = mark
        write_run_file(self._mark_path, json.dumps({"version": _VERSION, **asdict(mark)}))

    def _files(self) -> list[tuple[Path, Mark]]:
        """Those that are there, the older first, each with its size as offset."""
        found = []
        for path in (self._log.with_name(f"{self._log.name}.1"), self._log):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((path, Mark(status.st_dev, status.st_ino, status.st_size)))
        return found


def _same(one: Mark, other: Mark) -> bool:
    return (one.device, one.inode) == (other.device, other.inode)


def _piece(path: Path, size: Mark, begin: int, most: tuple[int, int], *, is_last: bool) -> Piece | None:
    """Whole lines from `begin` on; None where another file is there by now."""
    most_bytes, most_lines = most
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != (size.device, size.inode):
            return None
        file.seek(begin)
        text = file.read(most_bytes)
    lines: list[LogLine] = []
    at = 0
    while len(lines) < most_lines and (end := text.find(b"\n", at)) >= 0:
        lines.append(LogLine(size.inode, begin + at, text[at:end]))
        at = end + 1
    if not lines and text and (not is_last or len(text) == most_bytes):
        # No line is so long, and none ever ends in a file that is written no more.
        lines.append(LogLine(size.inode, begin, text))
        at = len(text)
    return Piece(tuple(lines), Mark(size.device, size.inode, begin + at))


def _read_mark(path: Path) -> Mark | None:
    """None where there is none, or it is damaged: then all is shipped again, which makes nothing twice."""
    try:
        held = json.loads(path.read_text())
        device, inode, offset = numbers = [held[name] for name in ("device", "inode", "offset")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        return None
    last = held.get("last")
    return Mark(device, inode, offset, last if isinstance(last, str) else None)
