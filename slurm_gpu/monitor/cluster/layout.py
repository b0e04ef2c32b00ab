"""Assign each GPU a square, in the order of zones, racks, nodes and GPUs.

The order of squares does not depend on jobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from slurm_gpu.monitor.cluster.metrics import SquareMetric, metrics_for
from slurm_gpu.text.hostlist import natural
from slurm_gpu.wire import DeviceFacts
from slurm_gpu.wire.answers.cluster import ClusterNode
from slurm_gpu.wire.answers.runs import NodeReport

# Sort key of devices whose number is unknown, which come last.
_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class Square:
    """The square of one GPU or MIG instance."""

    index: int
    uuid: str | None
    """The device's UUID; None if no slurm-gpud has reported the device."""
    type: str
    sm_clock_max_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class NodeSquares:
    """The squares of a node, numbered consecutively from `first`."""

    node: str
    zone: str | None
    rack: str | None
    server_type: str | None
    first: int
    squares: Sequence[Square]
    by_position: Sequence[int]
    """The square at each position in Slurm's likely order, which is the order of minor numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class SquareLayout:
    """All squares, numbered from 0; `body` is the body of GET /api/v1/layout."""

    id: str
    cluster: str
    nodes: Sequence[NodeSquares]
    n_squares: int
    metrics: Mapping[str, SquareMetric]
    square_of: Mapping[str, int]
    """The square of each device, by UUID."""
    types: Sequence[str]
    """The GPU type of each square."""
    clock_max_mhz: Sequence[float | None]
    body: bytes


def make_layout(
    cluster: str, nodes: Iterable[ClusterNode], reports: Iterable[NodeReport], racks: Mapping[str, str]
) -> SquareLayout:
    """Lay out all nodes that have GPUs; `racks` maps nodes to racks."""
    devices = {report.node: report.devices for report in reports}
    placed = sorted(
        (node for node in nodes if sum(node.gpus.values()) or devices.get(node.node)),
        key=lambda node: (_named(node.zone), _named(racks.get(node.node)), natural(node.node)),
    )
    made: list[NodeSquares] = []
    first = 0
    for node in placed:
        squares, by_position = _squares(node, devices.get(node.node, ()))
        rack = racks.get(node.node)
        made.append(NodeSquares(node.node, node.zone, rack, node.server_type, first, squares, by_position))
        first += len(squares)
    facts = [item for report in reports for item in report.devices]
    metrics = metrics_for(item.power_limit_w for item in facts)
    shape = {"cluster": cluster, "zones": _zones(made), "metrics": [item.to_json() for item in metrics]}
    digest = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
    return SquareLayout(
        id=digest,
        cluster=cluster,
        nodes=made,
        n_squares=first,
        metrics={item.name: item for item in metrics},
        square_of={
            square.uuid: node.first + place
            for node in made
            for place, square in enumerate(node.squares)
            if square.uuid is not None
        },
        types=[square.type for node in made for square in node.squares],
        clock_max_mhz=[square.sm_clock_max_mhz for node in made for square in node.squares],
        body=json.dumps({"id": digest, **shape}, separators=(",", ":")).encode(),
    )


def layout_key(
    nodes: Iterable[ClusterNode], reports: Iterable[NodeReport], racks: Mapping[str, str]
) -> object:
    """Return the inputs of a layout for comparison. Equal inputs result in equal layouts."""
    return (
        [(node.node, node.zone, node.server_type, tuple(node.gpus.items())) for node in nodes],
        [report.devices for report in reports],
        racks,
    )


def _named(name: str | None) -> tuple[bool, tuple[tuple[int, int, str], ...]]:
    """Return a sort key by name, with missing names last."""
    return name is None, natural(name or "")


def _zones(nodes: Sequence[NodeSquares]) -> list[dict[str, Any]]:
    return [
        {
            "name": zone,
            "racks": [
                {"name": rack, "nodes": [_node(node) for node in in_rack]}
                for rack, in_rack in groupby(in_zone, lambda node: node.rack)
            ],
        }
        for zone, in_zone in groupby(nodes, lambda node: node.zone)
    ]


def _node(node: NodeSquares) -> dict[str, Any]:
    gpus = [{"index": item.index, "uuid": item.uuid, "type": item.type} for item in node.squares]
    return {"name": node.node, "server_type": node.server_type, "gpus": gpus}


def _squares(node: ClusterNode, devices: Sequence[DeviceFacts]) -> tuple[list[Square], list[int]]:
    """Return a node's squares in the driver's order, and their indices in Slurm's likely order.

    If slurm-gpud reports fewer devices than Slurm has GPUs, squares without a device follow.
    """
    n_gpus = sum(node.gpus.values())
    parents = {item.parent for item in devices if item.parent is not None}
    leaves = [item for item in devices if item.uuid not in parents]
    whole = [item for item in devices if item.parent is None]
    # A site may omit MIG instances from gres.conf and allocate the whole GPU.
    shown = whole if len(whole) == n_gpus else leaves
    shown = sorted(shown, key=lambda item: (_number(item.index), _number(item.gpu_instance), item.uuid))
    types = [kind for kind, count in node.gpus.items() for _ in range(count)]
    squares = []
    for index in range(max(n_gpus, len(shown))):
        facts = shown[index] if index < len(shown) else None
        kind = _type(types, index, None if facts is None else facts.name)
        if facts is None:
            squares.append(Square(index, None, kind))
        else:
            squares.append(Square(index, facts.uuid, kind, facts.sm_clock_max_mhz))
    minors = sorted(
        range(len(shown)),
        key=lambda at: (_number(shown[at].minor), _number(shown[at].gpu_instance), at),
    )
    return squares, minors + list(range(len(shown), len(squares)))


def _number(value: int | None) -> int:
    return _LAST if value is None else value


def _type(types: Sequence[str], index: int, name: str | None) -> str:
    """Return the one of the node's GPU types that occurs in the GPU's name.

    If not exactly one type occurs in the name, return the type at the GPU's index.
    """
    if not types:
        return ""
    if name is not None:
        words = {kind for kind in types if kind and kind.lower() in name.lower()}
        if len(words) == 1:
            return words.pop()
    return types[min(index, len(types) - 1)]
