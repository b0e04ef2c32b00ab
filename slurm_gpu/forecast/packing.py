"""Arrays and JSON in a zip file, and back: what was stored may be cut off, damaged or somebody's own making.

Nothing of it is executed, no type is taken from it, and what it would unpack to is known before it is.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

# A model of the most looks that training takes has 200 MiB.
MOST_UNPACKED_BYTES = 512 * 2**20
_MOST_ENTRIES = 100
_TOLD = "told.json"

Told = TypeVar("Told", bound=msgspec.Struct)


class DamagedError(ValueError):
    """A part that is not there, or not what it should be; says which."""


def pack(told: msgspec.Struct, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The same bytes for the same content. Arrays are kept little-endian and without their shape."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, array in arrays.items():
            in_order = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            packed.writestr(_entry(name), in_order.tobytes())
        packed.writestr(_entry(_TOLD), msgspec.json.encode(told))
    return file.getvalue()


class PackedArchive:
    """What `pack` made. Whatever is wrong with it raises DamagedError."""

    def __init__(self, body: bytes) -> None:
        try:
            self._file = zipfile.ZipFile(io.BytesIO(body))
        except Exception as error:  # zipfile has a dozen ways to say so
            raise DamagedError(f"no zip file: {error}") from error
        self._entries = {entry.filename: entry for entry in self._file.infolist()}
        n_bytes = sum(entry.file_size for entry in self._file.infolist())
        if len(self._file.infolist()) > _MOST_ENTRIES or n_bytes > MOST_UNPACKED_BYTES:
            raise DamagedError(
                f"{len(self._file.infolist())} parts of {n_bytes} bytes; "
                f"{_MOST_ENTRIES} parts of {MOST_UNPACKED_BYTES} bytes in all may be"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def told(self, kind: type[Told]) -> Told:
        """The JSON, as one of these."""
        try:
            return msgspec.json.decode(self._read(_TOLD), type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DamagedError(f"{_TOLD}: {error}") from error

    def array(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """(n) values of this type, of which each is a number and none infinite."""
        wanted, content = np.dtype(dtype), self._read(name)
        if len(content) % wanted.itemsize:
            raise DamagedError(f"{name}: {len(content)} bytes are no whole number of {wanted.name}")
        values = np.frombuffer(content, wanted.newbyteorder("<")).astype(wanted)
        if wanted.kind == "f" and not np.isfinite(values).all():
            raise DamagedError(f"{name}: holds what is no number, or infinite")
        return values

    def _read(self, name: str) -> bytes:
        entry = self._entries.get(name)
        if entry is None:
            raise DamagedError(f"{name} is missing")
        if entry.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            raise DamagedError(
                f"{name} is packed in another way than deflate"
            )  # which may unpack without end
        try:
            with self._file.open(entry) as part:
                content = part.read(entry.file_size)  # without a size, as much would be unpacked as there is
        except Exception as error:  # as above; zlib's besides
            raise DamagedError(f"{name}: {error}") from error
        if len(content) != entry.file_size:
            raise DamagedError(f"{name} has {len(content)} bytes, of {entry.file_size}")
        return content


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # of 1980, always
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
