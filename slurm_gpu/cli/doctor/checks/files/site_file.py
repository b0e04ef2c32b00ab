"""Check slurm-gpu.yaml, which every part of slurm-gpu reads."""

from __future__ import annotations

import grp
import pwd
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.munged import socket_of
from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import restart
from slurm_gpu.cli.doctor.checks.files.access import ANY_USER, EXECUTE, denies
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, warn
from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import Operators, Rack, ServerType, SiteConfig, Zone
from slurm_gpu.errors import InputError, UsageError
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import few

_RESTART_THERE = "restart slurm-gpudbd on its host"


def valid(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpu.yaml exists, is valid, and names a cluster."""
    path = at.site.config_path
    try:
        config = at.site.config
    except InputError as error:
        remedy = (
            f"fix {path}; man slurm-gpu.yaml and docs/configuration.md describe each key"
            if path.exists()
            else f"copy {path} from another host, or write cluster: with ClusterName of slurm.conf and "
            "database: http://DBHOST:6829 into it"
        )
        yield fail(str(error), remedy)
        return
    yield ok(f"{path}: cluster {config.cluster}")


def for_users(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that users can run slurm-gpu, read slurm-gpu.yaml and reach munged, and that operators exist."""
    path, found = at.site.config_path.absolute(), list(_program(at))
    if (denied := denies(path, ANY_USER)) is not None:
        found.append(
            fail(
                f"users may not read {path}, which each command reads: {denied.part} denies access",
                denied.remedy,
            )
        )
    socket = socket_of(at.site.config)
    read_write = stat.S_IROTH | stat.S_IWOTH
    if socket.exists() and (denied := denies(socket, ANY_USER, read_write)) is not None:
        found.append(
            fail(f"users cannot reach munged at {socket}: {denied.part} denies access", denied.remedy)
        )
    found += _operators(at, at.site.config.operators)
    yield from found or [
        ok("users may run slurm-gpu, read slurm-gpu.yaml and reach munged; each operator exists")
    ]


def _program(at: DoctorContext) -> Iterator[CheckResult]:
    """Yield a failure if users may not run this command, for example because the umask was 077 for pip."""
    program = at.program()
    files = [(path, EXECUTE) for path in program.executables]
    files += [(path, stat.S_IROTH) for path in program.modules]
    # A link requires permission to search its own directory, and the permissions on its target.
    needed = [one for path, right in files for one in ((path.resolve(), right), (path.parent, stat.S_IXOTH))]
    for path, right in dict.fromkeys(needed):
        if not path.exists() or (denied := denies(path, ANY_USER, right)) is None:
            continue
        remedy = denied.remedy
        if program.venv is not None and denied.part.is_relative_to(program.venv):
            remedy = f"run chmod -R go+rX {shlex.quote(str(program.venv))}; set umask 022 before pip install"
        yield fail(f"users may not run slurm-gpu: {denied.part} denies access", remedy)
        return


def _operators(at: DoctorContext, operators: Operators) -> Iterator[CheckResult]:
    """Yield a finding for each operator that is not a user or group of this host."""
    where = f"operators in {at.site.config_path}"
    for user in operators.users:
        try:
            pwd.getpwnam(user)
        except KeyError:
            yield fail(
                f"operators.users names {user}, which is not a user of this host",
                f"run getent passwd {shlex.quote(user)} to check the name, fix {where}, then "
                f"{restart(at, 'slurm-gpudbd') if _is_here(at) else _RESTART_THERE}",
            )
    for group in operators.unix_groups:
        try:
            grp.getgrnam(group)
        except KeyError:
            yield fail(
                f"operators.unix_groups names {group}, which is not a group of this host",
                f"run getent group {shlex.quote(group)} to check the name, fix {where}, then "
                f"{restart(at, 'slurm-gpudbd') if _is_here(at) else _RESTART_THERE}",
            )


def _is_here(at: DoctorContext) -> bool:
    return bool(running("slurm-gpudbd"))


def same_cluster(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the cluster, nodes and partitions in slurm-gpu.yaml exist in Slurm."""
    config, path = at.site.config, at.site.config_path
    cluster = at.settings.cluster
    if config.cluster == cluster:
        yield ok(f"Slurm's ClusterName is {cluster}")
    else:
        yield fail(
            f"{path} has cluster: {config.cluster}, but Slurm's ClusterName is {cluster}",
            f"set cluster: {cluster} in {path}",
        )
    known = {node.name for node in at.nodes}
    groups = {
        **{f"zones.{name}": zone.nodes for name, zone in config.zones.items()},
        **{f"server_types.{name}": kind.nodes for name, kind in config.server_types.items()},
        **{f"racks.{name}": rack.nodes for name, rack in config.racks.items()},
    }
    if config.placement.nodes is not None:
        groups["placement"] = config.placement.nodes
    unreadable = set()
    for group, nodes in groups.items():
        try:
            strangers = [node for node in expand(nodes) if node not in known]
        except ValueError as error:
            unreadable.add(group)
            yield fail(f"{group}: {error}", f"fix nodes of {group} in {path}")
            continue
        if strangers:
            yield warn(
                f"{group} lists nodes that Slurm does not have: {few(strangers, 5)}",
                f"fix nodes of {group} in {path}",
            )
    yield from _in_two_groups(config, unreadable, path)
    partitions = {partition for node in at.nodes for partition in node.partitions}
    if unknown := [name for name in config.placement.partitions or () if name not in partitions]:
        yield warn(
            f"placement.partitions names partitions without nodes in Slurm: {few(unknown, 5)}",
            f"compare them with the output of sinfo; fix partitions of placement in {path}",
        )


def _in_two_groups(config: SiteConfig, unreadable: Collection[str], path: Path) -> Iterator[CheckResult]:
    """Yield a failure if a node is in two groups of one section, which the daemons reject."""
    sections: Mapping[str, Mapping[str, Zone | ServerType | Rack]] = {
        "zones": config.zones,
        "server_types": config.server_types,
        "racks": config.racks,
    }
    for section, groups in sections.items():
        readable = {name: one for name, one in groups.items() if f"{section}.{name}" not in unreadable}
        try:
            group_by_node(section, readable)
        except UsageError as error:
            yield fail(str(error), f"fix {section} in {path}")
