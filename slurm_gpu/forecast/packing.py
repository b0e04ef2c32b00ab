"""Store arrays and JSON in a zip file, and read such files safely even if they are damaged or forged.

Reading executes nothing from the file, takes no type from it, and checks the unpacked size first.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

# The largest model that training can create has 200 MiB.
MAX_UNPACKED_BYTES = 512 * 2**20
_MAX_ENTRIES = 100
_HEADER = "header.json"

Header = TypeVar("Header", bound=msgspec.Struct)


class DamagedError(ValueError):
    """A part is missing or invalid; the message names it."""


def pack(header: msgspec.Struct, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the archive as bytes; the same content gives the same bytes.

    Arrays are stored in little-endian order, without their shapes.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, array in arrays.items():
            in_order = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            packed.writestr(_entry(name), in_order.tobytes())
        packed.writestr(_entry(_HEADER), msgspec.json.encode(header))
    return file.getvalue()


class PackedArchive:
    """Reads the result of `pack`; any defect raises DamagedError."""

    def __init__(self, body: bytes) -> None:
        try:
            self._file = zipfile.ZipFile(io.BytesIO(body))
        except Exception as error:  # zipfile raises many types of errors
            raise DamagedError(f"not a zip file: {error}") from error
        self._entries = {entry.filename: entry for entry in self._file.infolist()}
        n_bytes = sum(entry.file_size for entry in self._file.infolist())
        if len(self._file.infolist()) > _MAX_ENTRIES or n_bytes > MAX_UNPACKED_BYTES:
            raise DamagedError(
                f"{len(self._file.infolist())} parts of {n_bytes} bytes in total; "
                f"at most {_MAX_ENTRIES} parts of {MAX_UNPACKED_BYTES} bytes are allowed"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def header(self, kind: type[Header]) -> Header:
        """Decode the JSON header into an object of this type."""
        try:
            return msgspec.json.decode(self._read(_HEADER), type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DamagedError(f"{_HEADER}: {error}") from error

    def array(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Return (n) finite values of this type."""
        wanted, content = np.dtype(dtype), self._read(name)
        if len(content) % wanted.itemsize:
            raise DamagedError(
                f"{name} has {len(content)} bytes, which is not a multiple of the size of {wanted.name}"
            )
        values = np.frombuffer(content, wanted.newbyteorder("<")).astype(wanted)
        if wanted.kind == "f" and not np.isfinite(values).all():
            raise DamagedError(f"{name} contains NaN or infinite values")
        return values

    def _read(self, name: str) -> bytes:
        entry = self._entries.get(name)
        if entry is None:
            raise DamagedError(f"{name} is missing")
        if entry.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            # Other compression methods could unpack an unlimited amount of data.
            raise DamagedError(f"{name} uses a compression other than deflate")
        try:
            with self._file.open(entry) as part:
                content = part.read(entry.file_size)  # without a size, read() would unpack everything
        except Exception as error:  # zipfile and zlib raise many types of errors
            raise DamagedError(f"{name}: {error}") from error
        if len(content) != entry.file_size:
            raise DamagedError(f"{name} has {len(content)} of {entry.file_size} bytes")
        return content


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # the time of an entry is always 1980
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
