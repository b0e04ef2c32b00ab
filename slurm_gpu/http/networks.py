"""Parse networks in settings, and compare them with the addresses of peers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

from slurm_gpu.config.value_types import ValueType, require

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _parse(value: Any) -> Network:
    network = ipaddress.ip_network(require(isinstance(value, str), value))
    return require(network.prefixlen, network)


# A network of all addresses (/0) is rejected.
NETWORK = ValueType("an address or a network", "10.1.0.0/24", _parse, {"type": "string"}, "networks")


def is_among(address: str, networks: Iterable[Network]) -> bool:
    """Return whether the address of a peer is in one of the networks."""
    try:
        peer = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return any((peer if mapped is None else mapped) in network for network in networks)


def plain(address: str) -> str:
    """Return an IPv4 address without the prefix that it has on an IPv6 socket."""
    return address.removeprefix("::ffff:")
