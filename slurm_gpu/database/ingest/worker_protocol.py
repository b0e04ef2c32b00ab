"""Messages between slurm-gpudbd and its workers: lists in MessagePack over a socket pair.

Both ends are of the same release, since one starts the other.
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


class WorkerSetup(Struct, tag=True):
    """The first message to a worker. It contains the configuration, as the files may have changed since.

    `listener` is the descriptor of the listening socket, `share` the worker's share of memory for bodies.
    """

    config: SiteConfig
    url: str
    for_people: bool
    listener: int
    share: float


class NeededData(Struct, tag=True):
    """The data that workers must collect.

    `live` has the nodes whose live values are needed (None: all), `windows` the jobs whose windows are
    needed, by node.
    """

    live: frozenset[str] | None
    windows: dict[str, list[int]]


class ShipmentStored(Struct, tag=True):
    """A shipment from `node` was stored."""

    node: str
    version: str | None


class NodeSeen(Struct, tag=True):
    """The last values of a node, and the interval until the next ones."""

    node: str
    live: Live
    interval_s: float


class WindowArrived(Struct, tag=True):
    """A requested window has arrived."""

    node: str
    job_id: int


class ItemsRejected(Struct, tag=True):
    """Items of these kinds were rejected."""

    kinds: list[str]


class PassedOn(Struct, tag=True):
    """A connection that the worker does not answer, and the bytes read so far.

    Its descriptor follows.
    """

    early: bytes


class WorkerStatus(Struct, tag=True):
    """A report sent every second; it states why the worker hangs, if it does."""

    hung: str | None = None


WorkerMessage = ShipmentStored | NodeSeen | WindowArrived | ItemsRejected | PassedOn | WorkerStatus


def _path(kind: type, value: str) -> Path:
    if kind is not Path:
        raise NotImplementedError(f"{kind} is not sent to a worker")
    return Path(value)


encode = msgspec.msgpack.Encoder(enc_hook=os.fspath).encode
decode_order = msgspec.msgpack.Decoder(WorkerSetup | NeededData, dec_hook=_path).decode
decode_messages = msgspec.msgpack.Decoder(list[WorkerMessage]).decode


def send_connection(channel: Connection, connection: socket.socket) -> None:
    """Send the descriptor of a connection, after its PassedOn message."""
    by = socket.socket(fileno=channel.fileno())
    try:
        socket.send_fds(by, [b"\0"], [connection.fileno()])
    finally:
        by.detach()


def receive_connection(channel: Connection) -> socket.socket | None:
    """Return the connection that follows a PassedOn message; None if no file descriptor is left for it."""
    by = socket.socket(fileno=channel.fileno())
    try:
        data, descriptors, _, _ = socket.recv_fds(by, 1, 1)
    finally:
        by.detach()
    if not data:
        raise EOFError
    return socket.socket(fileno=descriptors[0]) if descriptors else None
