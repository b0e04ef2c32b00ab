"""Messages between slurm-gpudbd and its workers, as lists in MessagePack over a socket pair.

Both are of the same release: one starts the other.
"""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.wire import Live


class Beginning(Struct, tag=True):
    """The first message to a worker. It has the configuration, as the files may have changed since.

    `listener` is the descriptor of the listening socket, `share` the worker's part of memory for bodies.
    """

    config: SiteConfig
    url: str
    for_people: bool
    listener: int
    share: float


class Needed(Struct, tag=True):
    """Nodes whose live values are needed from now on, None for all, and jobs whose windows are, by node."""

    live: frozenset[str] | None
    windows: dict[str, list[int]]


class ShipmentTaken(Struct, tag=True):
    """A shipment of that node was taken in."""

    node: str
    version: str | None


class NodeSeen(Struct, tag=True):
    """A node's last values, and when the next are due."""

    node: str
    live: Live
    interval_s: float


class WindowArrived(Struct, tag=True):
    """The window that was wanted."""

    node: str
    job_id: int


class ItemsRejected(Struct, tag=True):
    """Items of these kinds were rejected for good."""

    kinds: list[str]


class PassedOn(Struct, tag=True):
    """A connection that is not for the worker, with the bytes read so far; its descriptor follows."""

    early: bytes


class WorkerStatus(Struct, tag=True):
    """Each second: why the worker hangs, if it does."""

    hung: str | None = None


WorkerMessage = ShipmentTaken | NodeSeen | WindowArrived | ItemsRejected | PassedOn | WorkerStatus


def _path(kind: type, value: str) -> Path:
    if kind is not Path:
        raise NotImplementedError(f"{kind} is not sent to a worker")
    return Path(value)


encode = msgspec.msgpack.Encoder(enc_hook=os.fspath).encode
decode_order = msgspec.msgpack.Decoder(Beginning | Needed, dec_hook=_path).decode
decode_words = msgspec.msgpack.Decoder(list[WorkerMessage]).decode


def send_connection(channel: Connection, connection: socket.socket) -> None:
    """Send the descriptor of a connection, after its PassedOn."""
    by = socket.socket(fileno=channel.fileno())
    try:
        socket.send_fds(by, [b"\0"], [connection.fileno()])
    finally:
        by.detach()


def receive_connection(channel: Connection) -> socket.socket | None:
    """Return the connection that follows a PassedOn; None where no descriptor is left for it."""
    by = socket.socket(fileno=channel.fileno())
    try:
        data, descriptors, _, _ = socket.recv_fds(by, 1, 1)
    finally:
        by.detach()
    if not data:
        raise EOFError
    return socket.socket(fileno=descriptors[0]) if descriptors else None
