"""A small durable map: an append log of checksummed lines, one per change, compacted when it has grown.

A line is the CRC-32 of its JSON in eight hexadecimal digits, a space, and {"key": …, "value": …}; a value of
null takes the key away. The log is written in one piece and flushed to disk before `commit` returns True,
so what a kill -9 or a power cut can leave behind is a torn last line, which is cut off at the next start.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

COMPACT_BYTES = 1 << 20
COMPACT_FACTOR = 4


class Journal:
    """str → JSON value. Changes count at once here, and on disk once `commit` has returned True."""

    def __init__(self, directory: Path) -> None:
        """Open or create the log in `directory` (made with mode 0700).

        Raises OSError where that fails, BlockingIOError if another process has it open.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise BlockingIOError(error.errno, "in use by another process", str(directory)) from None
        self._directory = directory
        self._path = directory / "log"
        self._values: dict[str, bytes] = {}
        self._staged: dict[str, bytes | None] = {}
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = self._load()
        self._compact_at = COMPACT_BYTES
        self._failing = False
        _sync_directory(directory)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """The value, None if absent."""
        value = self._values.get(key)
        return None if value is None else json.loads(value)

    def keys(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, in the order in which they came."""
        return [key for key in self._values if key.startswith(prefix)]

    def put(self, key: str, value: Any) -> None:
        """Set a value that json.dumps takes."""
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        self._values[key] = self._staged[key] = data

    def remove(self, key: str) -> None:
        """Take a key away; one that is absent is no error."""
        if self._values.pop(key, None) is not None:
            self._staged[key] = None

    def commit(self) -> bool:
        """Bring all changes to disk; False, and told once, when that fails: they stay for the next time."""
        if not self._staged:
            return True
        lines = b"".join(_line(key, value) for key, value in self._staged.items())
        try:
            _write_all(self._file, lines, self._size)
            os.fdatasync(self._file)
        except OSError as error:
            self._told(error)
            return False
        self._size += len(lines)
        self._staged.clear()
        if self._failing:
            self._failing = False
            log.warning("%s: can be written again; nothing was lost", self._path)
        if self._size >= self._compact_at:
            self._compact()
        return True

    def close(self) -> None:
        """Give up the file; nothing is written any more."""
        os.close(self._file)
        os.close(self._lock)

    def _told(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            log.error("%s: %s; kept in memory and tried again", self._path, error.strerror)
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            log.debug("%s: cannot be cut back to %d bytes", self._path, self._size)

    def _load(self) -> int:
        data = self._path.read_bytes()
        good = 0
        bad: list[bytes] = []
        for line in data.splitlines(keepends=True):
            change = _change(line)
            if change is None:
                bad.append(line)
                continue
            good += len(line)
            key, value = change
            # A key that comes anew goes to the end, so that keys() keeps the order of the first coming.
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        torn = bool(bad) and data.endswith(bad[-1]) and not bad[-1].endswith(b"\n")
        if torn:
            log.info("%s: cut off a torn last line of %d bytes", self._path, len(bad.pop()))
            os.ftruncate(self._file, good + sum(map(len, bad)))
        if bad:
            aside = self._directory / f"log.damaged-{zlib.crc32(data):08x}"
            aside.write_bytes(data)
            log.error("%s: left out %d damaged lines; the whole is kept as %s", self._path, len(bad), aside)
            self._rewrite()
            return os.fstat(self._file).st_size
        return good

    def _rewrite(self) -> None:
        _replace(self._directory, self._path, self._lines())
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._file)
        self._file = file

    def _compact(self) -> None:
        try:
            self._rewrite()
        except OSError as error:
            log.warning("%s: cannot be compacted: %s", self._path, error.strerror)
            self._compact_at *= 2
            return
        self._size = os.fstat(self._file).st_size
        self._compact_at = max(COMPACT_BYTES, COMPACT_FACTOR * self._size)

    def _lines(self) -> Iterator[bytes]:
        return (_line(key, value) for key, value in self._values.items())


def _line(key: str, value: bytes | None) -> bytes:
    text = b'{"key":' + json.dumps(key).encode() + b',"value":' + (b"null" if value is None else value) + b"}"
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _change(line: bytes) -> tuple[str, bytes | None] | None:
    """The key and value of a whole, undamaged line."""
    checksum, space, text = line.partition(b" ")
    if not line.endswith(b"\n") or not space or checksum != b"%08x" % zlib.crc32(text[:-1]):
        return None
    change = json.loads(text)
    value = change["value"]
    return change["key"], None if value is None else json.dumps(value, separators=(",", ":")).encode()


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _replace(directory: Path, path: Path, lines: Iterator[bytes]) -> None:
    new = directory / "log.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(file, b"".join(lines), 0)
        os.fsync(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    new.rename(path)
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
