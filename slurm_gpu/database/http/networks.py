"""Addresses and networks of peers, as settings name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
EXPECTED = "must be an address or a network, as 10.0.0.7 or 10.1.0.0/24"


def read_network(value: Any) -> Network | None:
    """Return the network that a setting names; None for other values, and for all addresses (`/0`)."""
    try:
        network = ipaddress.ip_network(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return network if network is not None and network.prefixlen else None


def is_among(address: str, networks: Iterable[Network]) -> bool:
    """Return whether a peer's address is in one of the networks."""
    try:
        peer = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return any((peer if mapped is None else mapped) in network for network in networks)


def plain(address: str) -> str:
    """Return an IPv4 address as such, also where it arrived on an IPv6 socket."""
    return address.removeprefix("::ffff:")
