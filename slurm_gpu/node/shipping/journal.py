"""Store a small map durably in an append-only log of checksummed lines, which is compacted when it grows.

Each line is one change: the CRC-32 of its JSON in eight hexadecimal digits, a space, and {"key": …, "value":
…}. A value of null removes the key. A kill -9 or a power cut can leave an incomplete last line, which is cut
off at the next start. Memory contains only the offsets of values, and the values that are not on disk yet,
because a day's records of thousands of jobs may be waiting here.

On a full disk, changes remain in memory. To free space, a reserve file is deleted, and the log is rewritten
without outdated and low-priority values.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.files.atomic import sync
from slurm_gpu.node.allocation.state_lock import StateLock, is_same_file

T = TypeVar("T")
log = logging.getLogger(__name__)

# The log is compacted when its outdated data reach both this size and the size of its current data; for this
# comparison, the latter counts as at most the limit below.
COMPACT_BYTES = 1 << 20
_GARBAGE_MAX_BYTES = 32 << 20
# The reserve suffices to rewrite the usual amount of waiting data.
RESERVE_BYTES = 1 << 20
# The reserve is created only if the disk has this much free space.
ROOMY_BYTES = 16 * RESERVE_BYTES
# On a full disk, the log is rewritten only if this frees at least this many bytes.
_GAIN_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_SMALL_PIECE_BYTES = 1 << 14
_LENGTH_BITS = 32
# Longer lines are garbage left by a power cut and are not read into memory; valid lines take a few KiB.
_MOST_LINE_BYTES = 16 << 20


class DurableMap:
    """A map of str to JSON values. Changes are in memory at first, and on disk once `commit` returns True.

    `is_whole` is False if damaged lines were dropped.
    """

    def __init__(self, directory: Path) -> None:
        """Open the log in `directory`; create both if they do not exist.

        Raise OSError on failure, or BlockingIOError if another process has the log open.
        """
        self._lock = StateLock(directory)
        self._directory = directory
        self._path, self._reserve = directory / "log", directory / "reserve"
        # The offset and length of each key's line in one number; a tuple would take three times the memory.
        self._places: dict[str, int] = {}
        self._staged: dict[str, bytes | None] = {}
        self._staged_bytes = 0
        # Bytes of current lines that become outdated when the staged changes are written.
        self._outdated = 0
        self.is_whole = True
        self._file = _open(self._path)
        self._size = self._live = 0
        self._load()
        self._compact_at = COMPACT_BYTES
        self.failing = False
        sync(directory)
        self._keep_reserve()

    def __contains__(self, key: str) -> bool:
        return self._staged[key] is not None if key in self._staged else key in self._places

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes of all values, on disk or in memory."""
        return self._live - self._outdated + self._staged_bytes

    @property
    def bytes_in_memory(self) -> int:
        """Return the size in bytes of the values that are not on disk yet."""
        return self._staged_bytes

    def in_memory(self, key: str) -> bool:
        """Return whether the value is not on disk yet."""
        return self._staged.get(key) is not None

    def get(self, key: str) -> Any:
        """Return the value, or None if it is absent or cannot be read."""
        if key in self._staged:
            line = self._staged[key]
            return None if line is None else json.loads(line[9:])["value"]
        place = self._places.get(key)
        if place is None:
            return None
        try:
            return json.loads(self._read(place)[9:])["value"]
        except (OSError, ValueError, RecursionError) as error:
            log.error("%s: %s is no longer readable: %s", self._path, key, error)  # noqa: TRY400
            return None

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, roughly in insertion order."""
        staged = (key for key in self._staged if key not in self._places)
        every = itertools.chain(self._places, staged)
        return [key for key in every if key.startswith(prefix) and key in self]

    def put(self, key: str, value: Any) -> bytes:
        """Set a JSON-serialisable value and return its JSON."""
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        self._stage(key, _line(key, text))
        return text

    def remove(self, key: str) -> None:
        """Remove a key if it is present."""
        if key in self._places:
            self._stage(key, None)
        else:
            self._unstage(key)

    def commit(self, spared: Callable[[str], bool] = lambda _: False) -> bool:
        """Write all changes to disk; on failure, log the error once, keep the changes and return False.

        On a full disk, keys that are `spared` are written last.
        """
        if not self._staged:
            return True
        try:
            self._stay_in_place()
        except OSError as error:
            return self._failed(error)
        try:
            self._write_staged(spared, _PIECE_BYTES)
        except OSError:
            self._make_room(spared)
            try:
                self._write_staged(spared, _SMALL_PIECE_BYTES)
            except OSError as error:
                return self._failed(error)
        if self.failing:
            self.failing = False
            log.warning("%s: is writable again", self._path)
            self._keep_reserve()
        if self._size - self._live >= max(self._compact_at, min(self._live, _GARBAGE_MAX_BYTES)):
            self._compact()
        return True

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)
        self._lock.close()

    # Memory

    def _stage(self, key: str, line: bytes | None) -> None:
        self._unstage(key)
        self._staged[key] = line
        self._staged_bytes += 0 if line is None else len(line)
        self._outdated += _length(self._places.get(key, 0))

    def _unstage(self, key: str) -> None:
        if key in self._staged:
            line = self._staged.pop(key)
            self._staged_bytes -= 0 if line is None else len(line)
            self._outdated -= _length(self._places.get(key, 0))

    # Disk

    def _read(self, place: int) -> bytes:
        return os.pread(self._file, _length(place), place >> _LENGTH_BITS)

    def _place(self, key: str, offset: int, length: int) -> None:
        # A new key is added at the end; a key whose value is replaced keeps its position in the order.
        self._live += length - _length(self._places.get(key, 0))
        self._places[key] = offset << _LENGTH_BITS | length

    def _displace(self, key: str) -> None:
        self._live -= _length(self._places.pop(key, 0))

    def _write_staged(self, spared: Callable[[str], bool], piece_bytes: int) -> None:
        """Append the changes piece by piece, so that as many as possible are written.

        Replacements are written before removals, so that no allocation is removed before its record is
        written.
        """
        changes = sorted(self._staged.items(), key=lambda change: (change[1] is None, spared(change[0])))
        for piece in _pieces(changes, piece_bytes, lambda change: len(change[1] or change[0])):
            lines = [line if line is not None else _line(key, None) for key, line in piece]
            try:
                _write_all(self._file, b"".join(lines), self._size)
                os.fdatasync(self._file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
                raise
            for (key, line), written in zip(piece, lines, strict=True):
                self._unstage(key)
                if line is None:
                    self._displace(key)
                else:
                    self._place(key, self._size, len(line))
                self._size += len(written)

    def _stay_in_place(self) -> None:
        """If the log was removed or replaced, rewrite it from the file that is still open."""
        if not self._lock.is_in_place():
            lock = StateLock(self._directory)
            self._lock.close()
            self._lock = lock
        if not is_same_file(self._file, self._path):
            log.error("%s: was removed or replaced; it is rewritten without loss", self._path)
            self._rewrite(self._places)

    def _failed(self, error: OSError) -> bool:
        if not self.failing:
            self.failing = True
            log.error("%s: %s; changes remain in memory and are retried", self._path, error.strerror)
        return False

    def _make_room(self, spared: Callable[[str], bool]) -> None:
        """Free disk space: delete the reserve, and rewrite the log without outdated and spared values."""
        self._reserve.unlink(missing_ok=True)
        if self._size - self._live + self._outdated < _GAIN_BYTES:
            return
        for key in filter(spared, list(self._places)):
            if key not in self._staged and (value := self.get(key)) is not None:
                self.put(key, value)
        kept = {key: place for key, place in self._places.items() if key not in self._staged}
        if sum(map(_length, kept.values())) > _free_bytes(self._directory):
            return
        try:
            self._rewrite(kept)
        except OSError as error:
            log.debug("%s: cannot be rewritten: %s", self._path, error.strerror)
            return
        self._outdated = 0
        for key in [key for key, line in self._staged.items() if line is None]:
            self._unstage(key)

    def _keep_reserve(self) -> None:
        try:
            if self._reserve.exists() or _free_bytes(self._directory) < ROOMY_BYTES:
                return
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            log.debug("%s: the reserve file cannot be created: %s", self._reserve, error.strerror)
            self._reserve.unlink(missing_ok=True)

    def _load(self) -> None:
        damaged = torn = checksum = 0
        with self._path.open("rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                checksum = zlib.crc32(line, checksum)
                torn += len(line)
                if not line.endswith(b"\n"):
                    continue
                # The rest of an overlong line is not a change.
                change = _change(line) if torn == len(line) else None
                if change is None:
                    damaged += 1
                elif change[1]:
                    self._place(change[0], self._size, len(line))
                else:
                    self._displace(change[0])
                self._size += torn
                torn = 0
        if damaged:
            self.is_whole = False
            aside = self._directory / f"log.damaged-{checksum:08x}"
            self._path.rename(aside)
            log.error(
                "%s: dropped %d damaged lines; the damaged log is kept as %s", self._path, damaged, aside
            )
            self._rewrite(self._places)
        elif torn:
            log.info("%s: cut off an incomplete last line of %d bytes", self._path, torn)
            os.ftruncate(self._file, self._size)

    def _compact(self) -> None:
        try:
            self._rewrite(self._places)
        except OSError as error:
            log.warning("%s: cannot be compacted: %s", self._path, error.strerror)
            self._compact_at *= 2
            return
        self._compact_at = COMPACT_BYTES

    def _rewrite(self, places: dict[str, int]) -> None:
        """Replace the log with one that contains only these lines; on an OSError, the old log is kept."""
        new = self._directory / "log.new"
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        moved: dict[str, int] = {}
        size = 0
        try:
            for piece in _pieces(places.items(), _PIECE_BYTES, lambda item: _length(item[1])):
                lines = [self._read(place) for _, place in piece]
                _write_all(file, b"".join(lines), size)
                for (key, _), line in zip(piece, lines, strict=True):
                    moved[key] = size << _LENGTH_BITS | len(line)
                    size += len(line)
            os.fsync(file)
            new.rename(self._path)
        except OSError:
            os.close(file)
            new.unlink(missing_ok=True)
            raise
        sync(self._directory)
        os.close(self._file)
        self._file, self._places, self._size, self._live = file, moved, size, size


def _open(path: Path) -> int:
    """Open or create the log; raise OSError if it is not a regular file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "is a link; slurm-gpud requires a regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def _line(key: str, value: bytes | None) -> bytes:
    text = b'{"key":' + json.dumps(key).encode() + b',"value":' + (b"null" if value is None else value) + b"}"
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _change(line: bytes) -> tuple[str, bool] | None:
    """Return the key of a line and whether it has a value, or None if the line is damaged."""
    checksum, space, text = line.partition(b" ")
    if not line.endswith(b"\n") or not space or checksum != b"%08x" % zlib.crc32(text[:-1]):
        return None
    try:
        match json.loads(text):
            case {"key": str(key), "value": value}:
                return key, value is not None
    except (ValueError, RecursionError):
        return None
    return None


def _length(place: int) -> int:
    return place & ((1 << _LENGTH_BITS) - 1)


def _pieces(items: Iterable[T], piece_bytes: int, length: Callable[[T], int]) -> Iterator[list[T]]:
    piece: list[T] = []
    size = 0
    for item in items:
        piece.append(item)
        size += length(item)
        if size >= piece_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bfree * status.f_frsize
