"""Read decisions.log from the last shipped position, even across rotations."""

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
    """A position in the log: the device and inode of a file, and a byte offset.

    `last` is the ID of the last shipped decision; None if no decision was shipped or its ID is unknown.
    """

    device: int
    inode: int
    offset: int
    last: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A whole line and its position; the position distinguishes identical lines."""

    inode: int
    offset: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive lines, and the mark after them."""

    lines: tuple[LogLine, ...]
    mark: Mark
    lost: bool = False
    """Whether unread lines were lost because the log was rotated twice."""


class DecisionLog:
    """The log and its predecessor `.1`; the mark is stored in a file next to the log."""

    def __init__(self, log: Path, mark: Path) -> None:
        self._log, self._mark_path = log, mark
        self._mark = _read_mark(mark)

    def next(self, most_bytes: int, most_lines: int) -> Piece | None:
        """Return the lines after the mark, or None if there are no new lines; raise OSError on failure."""
        lost = False
        files = self._files()
        if self._mark is None and files:
            # Set the mark at the start, to detect lines that two rotations remove before the first shipment.
            self._put_mark(Mark(files[0][1].device, files[0][1].inode, 0))
        if self._mark is not None:
            known = [place for place, (_, mark) in enumerate(files) if _same(mark, self._mark)]
            lost = bool(files) and not known
            files = files[known[0] :] if known else files
        for place, (path, mark) in enumerate(files):
            is_last = place == len(files) - 1
            begin = self._mark.offset if self._mark is not None and _same(mark, self._mark) else 0
            if begin > mark.offset:
                begin = 0  # the file was truncated
            piece = _piece(path, mark, begin, (most_bytes, most_lines), is_last=is_last)
            if piece is None:
                return self.next(most_bytes, most_lines)  # the file was rotated meanwhile
            if piece.lines or lost:
                return Piece(piece.lines, piece.mark, lost)
        return None

    @property
    def last(self) -> str | None:
        """The ID of the last shipped decision."""
        return None if self._mark is None else self._mark.last

    def done(self, piece: Piece, last: str | None = None) -> None:
        """Record that the piece was shipped; raise OutsideError if the mark cannot be written."""
        self._put_mark(replace(piece.mark, last=self.last if last is None else last))

    def restart(self) -> None:
        """Start again from the beginning of the log, because slurm-gpudbd has lost shipped decisions."""
        self._mark = None

    def _put_mark(self, mark: Mark) -> None:
        self._mark = mark
        write_run_file(self._mark_path, json.dumps({"version": _VERSION, **asdict(mark)}))

    def _files(self) -> list[tuple[Path, Mark]]:
        """Return the existing files, oldest first, each with its size as the offset."""
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
    """Return whole lines from the offset `begin`; None if the file at this path was replaced meanwhile."""
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
        # No line is this long, and nothing is appended to a rotated file.
        lines.append(LogLine(size.inode, begin, text))
        at = len(text)
    return Piece(tuple(lines), Mark(size.device, size.inode, begin + at))


def _read_mark(path: Path) -> Mark | None:
    """Return the mark, or None if the file is missing or damaged.

    Without a mark, all decisions are shipped again; their IDs prevent duplicates.
    """
    try:
        plain = json.loads(path.read_text())
        device, inode, offset = numbers = [plain[name] for name in ("device", "inode", "offset")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        return None
    last = plain.get("last")
    return Mark(device, inode, offset, last if isinstance(last, str) else None)
