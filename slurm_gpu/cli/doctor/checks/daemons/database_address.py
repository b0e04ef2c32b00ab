"""Check that slurm-gpudbd answers at the address that other hosts use, and suggest a remedy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from slurm_gpu.cli.doctor.checks.daemons.outages import stopped_mariadb
from slurm_gpu.cli.doctor.checks.daemons.processes import ports, running
from slurm_gpu.cli.doctor.checks.daemons.services import continue_stopped, restart, start_and_log, start_there
from slurm_gpu.cli.doctor.checks.finding import (
    DATABASE_FILE,
    CheckResult,
    DoctorContext,
    fail,
    has_address,
    is_loopback,
    ok,
    skipped,
)
from slurm_gpu.errors import MungeError, OutsideError, SlurmError
from slurm_gpu.text.hostlist import compress

_DAEMON = "slurm-gpudbd"
# A reachable slurm-gpudbd gives this answer if munged, slurmctld or its database is down.
_UNABLE = "cannot answer at the moment"


def database_host(at: DoctorContext) -> str:
    """Return the host of slurm-gpudbd according to slurm-gpu.yaml."""
    return urlsplit(at.site.config.database).hostname or ""


def unanswered(at: DoctorContext, error: str) -> str:
    """Return the remedy for a slurm-gpudbd that does not answer, given the message of the client."""
    if (name := _unknown_name(at, error)) is not None:
        return name
    processes = running(_DAEMON)
    # slurm-gpudbd does not answer while it waits for its database.
    if processes and (stopped := stopped_mariadb(at)) and continue_stopped(processes) is None:
        return f"MariaDB is stopped on this host: {stopped}"
    port, listens = urlsplit(at.site.config.database).port or 80, ports(processes)
    if listens and port not in listens and not any(process.is_stopped for process in processes):
        return _other_port(at, listens)
    file = at.site.config_path.parent / DATABASE_FILE
    if processes or (file.exists() and at.is_this_host(database_host(at))):
        return start_and_log(at, _DAEMON)
    return (
        f"{start_there(at, _DAEMON, 'on its host')}; if it is running there, compare database: in "
        f"{at.site.config_path} with the address that ss -ltnp shows there"
    )


def _unknown_name(at: DoctorContext, error: str) -> str | None:
    """Return the remedy if the request failed because `database:` has a host name that does not resolve."""
    url = at.site.config.database
    if url not in error or has_address(database_host(at)):
        return None
    return (
        f"{database_host(at)} does not resolve: run getent hosts {database_host(at)}; fix database: {url} in "
        f"{at.site.config_path} on every host, or add the name to DNS or /etc/hosts"
    )


def _other_port(at: DoctorContext, listens: Sequence[int]) -> str:
    url = at.site.config.database
    return (
        f"slurm-gpudbd listens on port {listens[0]}, but {at.site.config_path} has database: {url}; change "
        f"database: on every host, or listen: in {DATABASE_FILE}; then {restart(at, _DAEMON)}"
    )


def address(at: DoctorContext) -> Iterator[CheckResult]:
    """On slurm-gpudbd's host, check that slurm-gpudbd also answers at the address that other hosts use."""
    config = at.site.config
    if not config.database_socket.exists():
        yield skipped("slurm-gpudbd is on another host, so its answer came from the address that nodes use")
        return
    url, found = config.database, []
    with at.site.database() as database:
        mine = database.health()
    by_network = dataclasses.replace(config, database_socket=Path(os.devnull))
    try:
        with at.site.connect_database(by_network) as database:
            health = database.health()
    except MungeError as error:
        yield skipped(f"slurm-gpudbd cannot be queried at {url}: {error}")
        return
    except OutsideError as error:
        if _UNABLE in str(error):
            yield skipped(f"slurm-gpudbd is reachable at {url}, but reports: {error}")
            return
        listens = ports(running(_DAEMON))
        port = urlsplit(url).port or 80
        found.append(
            fail(
                f"slurm-gpudbd answers at its socket, but not at {url}, which nodes and other hosts use: "
                f"{error}",
                unknown
                if (unknown := _unknown_name(at, str(error))) is not None
                else _other_port(at, listens)
                if listens and port not in listens
                else f"run curl -v {url}/v1/health; check the host name, firewalls, and listen: in "
                f"{DATABASE_FILE}",
            )
        )
    else:
        if (health.cluster, health.database, health.schema) != (mine.cluster, mine.database, mine.schema):
            found.append(
                fail(
                    f"the slurm-gpudbd at {url}, which nodes and other hosts use, belongs to another "
                    f"cluster, {health.cluster}",
                    f"set database: to the address of cluster {config.cluster}'s slurm-gpudbd in "
                    f"{at.site.config_path} on every host",
                )
            )
        with at.site.database() as database:
            later = database.health()
        # A single slurm-gpudbd may import between the two answers, but in this case its last answer agrees.
        if not found and health.last_import_s not in (mine.last_import_s, later.last_import_s):
            found.append(
                fail(
                    "commands and slurm-gpud on this host use this host's slurm-gpudbd instead of the one at "
                    f"{url}, so the records of the cluster are in two databases",
                    f"stop and disable {_DAEMON} here, or set database: to this host in "
                    f"{at.site.config_path} on every host",
                )
            )
    host = database_host(at)
    if is_loopback(host) and (others := _elsewhere(at)):
        found.append(
            fail(
                f"database: {url} is a loopback address, which other hosts such as {compress(others)} "
                "cannot reach",
                f"set database: http://{at.host}:{urlsplit(url).port or 80} (or another name of this host) "
                f"in {at.site.config_path} on every host",
            )
        )
    yield from found or [ok(f"slurm-gpudbd answers at {url}, the address that nodes use")]


def _elsewhere(at: DoctorContext) -> list[str]:
    """Return the GPU nodes on other hosts; none if slurmctld does not answer."""
    try:
        here = at.gpu_nodes_here
        return [node.name for node in at.nodes if node.n_gpus and node.name not in here]
    except SlurmError:
        return []
