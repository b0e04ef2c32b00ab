"""Define the messages between slurm-gpudbd and its workers: lists in MessagePack over a socket pair.

Both processes have the same version, since slurm-gpudbd starts its workers.
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
    """The first message to a worker.

    The message contains the configuration, since the files may change after slurm-gpudbd reads them.
    `listener` is the descriptor of the listening socket. `share` is the worker's share of the memory for
    request bodies.
    """

    config: SiteConfig
    url: str
    for_people: bool
    listener: int
    share: float


class NeededData(Struct, tag=True):
    """The data that workers must request from nodes.

    `live` contains the nodes whose live values are needed (None: all nodes). `windows` contains, by node, the
    jobs whose windows are needed.
    """

    live: frozenset[str] | None
    windows: dict[str, list[int]]


class ShipmentStored(Struct, tag=True):
    """A shipment from `node` was stored."""

    node: str
    version: str | None


class NodeSeen(Struct, tag=True):
    """The live values of a node, and the interval until its next live values."""

    node: str
    live: Live
    interval_s: float


class WindowArrived(Struct, tag=True):
    """The requested window of a job has arrived from `node`."""

    node: str
    job_id: int


class ItemsRejected(Struct, tag=True):
    """Items of these kinds were rejected."""

    kinds: list[str]


class PassedOn(Struct, tag=True):
    """A connection that the worker passes on, and the bytes read so far.

    The descriptor of the connection is sent after this message.
    """

    early: bytes


class WorkerStatus(Struct, tag=True):
    """A report sent every second; `hung` describes the hang if the worker hangs."""

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
    """Send the descriptor of a connection; it must follow the PassedOn message."""
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
