"""What slurm-gpudbd and a worker of it say to each other, over a socket that the worker inherits.

Each message is MessagePack behind its length. Both are of the same release: one starts the other.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.ingest.shipment import ShipmentError
from slurm_gpu.errors import DatabaseError, SlurmError
from slurm_gpu.wire import Live

_LENGTH = struct.Struct("<I")


class Beginning(Struct, tag=True):
    """The first word to a worker. It is told the configuration: the files may have changed since.

    `imports`: this worker also reads Slurm's accounting and matches.
    """

    config: SiteConfig
    url: str
    for_people: bool
    imports: bool


class Posted(Struct, tag=True):
    """A shipment, of somebody who may ship; the worker answers it under its number."""

    number: int
    body: bytes
    encoding: str
    address: str | None
    came_s: float


class WindowWanted(Struct, tag=True):
    """Somebody waits for the window of this job from this node."""

    node: str
    job_id: int


class LiveNeeded(Struct, tag=True):
    """The nodes whose live values are needed from now on, None for all."""

    nodes: frozenset[str] | None


Order = Beginning | Posted | WindowWanted | LiveNeeded


class Answered(Struct, tag=True):
    """All of that shipment is stored, and this is the answer."""

    number: int
    body: bytes


class Failed(Struct, tag=True):
    """It was not stored, or not all of it. `status` is 0 of an error that is not a ShipmentError."""

    number: int
    kind: str
    why: str
    status: int = 0
    retry_after_s: int | None = None


class Heard(Struct, tag=True):
    """A shipment of that node was taken in."""

    node: str
    version: str | None


class NodeSeen(Struct, tag=True):
    """A node's last values came with its records."""

    node: str
    live: Live
    interval_s: float


class Arrived(Struct, tag=True):
    """The window that was wanted."""

    node: str
    job_id: int


class ItemsRejected(Struct, tag=True):
    """Items of these kinds were rejected for good."""

    kinds: list[str]


class Fares(Struct, tag=True):
    """How the worker fares, each second; times are Clock.monotonic(), which all processes have in common.

    `import_*` are None of a worker that does not import.
    """

    n_waiting: int
    waiting_since_s: float
    importing: bool = False
    stepped_s: float = 0.0
    last_import_s: float | None = None
    import_error: str | None = None


Word = Answered | Failed | Heard | NodeSeen | Arrived | ItemsRejected | Fares

_KINDS: dict[str, type[Exception]] = {"database": DatabaseError, "slurm": SlurmError}


def _path(kind: type, value: str) -> Path:
    if kind is not Path:
        raise NotImplementedError(f"{kind} is not told to a worker")
    return Path(value)


_encode = msgspec.msgpack.Encoder(enc_hook=os.fspath).encode
decode_order = msgspec.msgpack.Decoder(Order, dec_hook=_path).decode
decode_word = msgspec.msgpack.Decoder(Word).decode


def packed(message: Order | Word) -> bytes:
    """As it is sent."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Splitter:
    """Finds the messages in what comes."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Those that are whole now."""
        self._pending += data
        start, end = 0, len(self._pending)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, start)
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            yield bytes(self._pending[start : start + length])
            start += length
        del self._pending[:start]


def failure(number: int, error: BaseException) -> Failed:
    """An error of a worker as it is told."""
    if isinstance(error, ShipmentError):
        return Failed(number, "shipment", str(error), error.status, error.retry_after_s)
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "unforeseen")
    return Failed(number, kind, str(error) if kind in _KINDS else f"{type(error).__name__}: {error}")


def error_of(told: Failed) -> Exception:
    """The same error, to be raised where the request is answered."""
    if told.kind == "shipment":
        return ShipmentError(told.status, told.why, told.retry_after_s)
    kind: Any = _KINDS.get(told.kind, RuntimeError)
    error: Exception = kind(told.why)
    return error
