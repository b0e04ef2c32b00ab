"""The site file and MUNGE: what every part of slurm-gpu stands on."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurm_gpu import munge
from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, ok, warn
from slurm_gpu.errors import InputError, MungeError
from slurm_gpu.slurm.hostlist import expand
from slurm_gpu.units import few


def valid(at: Surroundings) -> Iterator[Finding]:
    """slurm-gpu.yaml is there and without mistakes."""
    path = at.site.config_path
    try:
        config = at.site.config
    except InputError as error:
        yield fail(
            str(error), f"mend {path}; man slurm-gpu.yaml (docs/contracts.md, section 7) tells each key"
        )
        return
    yield ok(f"{path}: cluster {config.cluster}")


def munge_round_trip(at: Surroundings) -> Iterator[Finding]:
    """A credential made here is understood here."""
    socket = at.site.config.munge_socket
    try:
        uid = munge.decode(munge.encode(b"slurm-gpu doctor", socket), socket).uid
    except MungeError as error:
        yield fail(str(error), "systemctl start munge")
        return
    if uid == os.geteuid():
        yield ok("a credential makes the round trip")
    else:
        yield fail(f"a credential of uid {os.geteuid()} came back as uid {uid}", "systemctl restart munge")


def same_cluster(at: Surroundings) -> Iterator[Finding]:
    """The site file speaks of the cluster and the nodes that Slurm has."""
    config, path = at.site.config, at.site.config_path
    cluster = at.settings.cluster
    if config.cluster == cluster:
        yield ok(f"Slurm calls the cluster {cluster} too")
    else:
        yield fail(
            f"{path} says cluster: {config.cluster}, Slurm says {cluster}", f"write cluster: {cluster}"
        )
    known = {node.name for node in at.nodes}
    groups = [("zones", name, zone.nodes) for name, zone in config.zones.items()]
    groups += [("server_types", name, kind.nodes) for name, kind in config.server_types.items()]
    for section, name, nodes in groups:
        try:
            strangers = [node for node in expand(nodes) if node not in known]
        except ValueError as error:
            yield fail(f"{section}.{name}: {error}", f"mend nodes of {section}.{name} in {path}")
            continue
        if strangers:
            yield warn(
                f"{section}.{name} has nodes that Slurm does not know: {few(strangers, 5)}",
                f"mend nodes of {section}.{name} in {path}",
            )
