"""Check the requirements of the lab on this host before it creates anything."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable

from lab import cgroups, configuration, mariadb, people, services, slurm_config
from lab.errors import LabError
from lab.layout import PORT_VARIABLE, Layout
from lab.options import Node

_COMMANDS = (
    *("munged", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacctmgr", "sbatch", "useradd"),
    *("make", "cc"),
)


def require_root() -> None:
    """Check that this process may create users, devices and cgroups."""
    if os.geteuid() != 0:
        raise LabError("the lab creates users, devices and cgroups: run it as root, or with sudo")


def require_software(layout: Layout) -> None:
    """Check for the programs that the lab runs and the users that they run as."""
    path = services.environment(layout)["PATH"]
    missing = [name for name in _COMMANDS if shutil.which(name, path=path) is None]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)}; `make setup` installs what the lab needs")
    people.require_system_users(slurm_config.SLURM_USER, configuration.MUNGE_USER, mariadb.SYSTEM_USER)


def require_network() -> None:
    """Check for an address on which Slurm's daemons can listen; 127.0.0.1 is not enough."""
    try:
        socket.getaddrinfo(
            None,
            1,
            family=socket.AF_INET,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG,
        )
    except OSError as error:
        raise LabError(
            "Slurm needs an IPv4 address other than 127.0.0.1, which this host does not have; "
            "add any: ip addr add 127.0.1.1/32 dev lo"
        ) from error


def require_free_ports(layout: Layout, nodes: Iterable[Node]) -> None:
    """Check that the lab's ports are free."""
    ports = [layout.slurmctld_port, layout.slurmdbd_port, layout.mariadb_port]
    ports += [layout.database_port, layout.web_port]
    ports += [layout.slurmd_port(node.number) for node in nodes]
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise LabError(
                    f"port {port}: {error.strerror}; choose another range with {PORT_VARIABLE}, "
                    f"such as {PORT_VARIABLE}={layout.port + 1000}"
                ) from error


def require_free_cgroups(nodes: Iterable[Node]) -> None:
    """Check that no slurmd on this host runs a node of the same name."""
    if taken := cgroups.node_groups(sorted(node.name for node in nodes)):
        raise LabError(
            f"cgroup {taken[0]} exists and is not the lab's: another slurmd here uses that node name; if no "
            "other slurmd runs, the cgroup is stale: remove it and all groups below it with rmdir"
        )
