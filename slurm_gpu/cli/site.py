"""Provide commands with the site file, Slurm and slurm-gpudbd, which are opened on first use."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu import munge
from slurm_gpu.config.site import SiteConfig, default_path, load_config
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.slurm.runner import CommandRunner, run_command

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient
    from slurm_gpu.policy.language.names import SystemDirectory
    from slurm_gpu.slurm.client import SlurmClient
    from slurm_gpu.slurm.sacctmgr import Sacctmgr


# `scontrol ping` prints this if slurmctld is down; a timeout may be due to the load of this host.
_DOWN = " is DOWN"


def open_database(config: SiteConfig) -> DatabaseClient:
    """Connect to slurm-gpudbd."""
    # httpx takes longer to import than most commands take to run.
    from slurm_gpu.client.database_client import DatabaseClient

    return DatabaseClient(config)


@dataclass
class CommandSite:
    """The resources of one command; tests pass their own Slurm, database and clock."""

    config_path: Path = field(default_factory=default_path)
    # If None, the Slurm of this host is used.
    connect_slurm: Callable[[], SlurmClient] | None = None
    connect_database: Callable[[SiteConfig], DatabaseClient] = open_database
    wall: Callable[[], float] = time.time
    # If None, sacctmgr is used.
    connect_limits: Callable[[], Sacctmgr] | None = None
    # Runs commands of Slurm.
    run: CommandRunner = run_command
    encode: Callable[[bytes, str | None], str] = munge.encode
    sleep: Callable[[float], None] = time.sleep

    @functools.cached_property
    def config(self) -> SiteConfig:
        """Load the site file; raise InvalidFileError with all errors in it."""
        return load_config(self.config_path)

    @functools.cached_property
    def slurm(self) -> SlurmClient:
        """Connect to the Slurm of this host.

        Raise SlurmError or MungeError if a ping of slurmctld shows that slurmctld or munged is down.
        """
        return self._slurm_here() if self.connect_slurm is None else self.connect_slurm()

    @functools.cached_property
    def limits(self) -> Sacctmgr:
        """Return the client for Slurm's limits in slurmdbd."""
        from slurm_gpu.slurm.sacctmgr import Sacctmgr  # lists of runs do not use Slurm

        return Sacctmgr(self.run) if self.connect_limits is None else self.connect_limits()

    def _slurm_here(self) -> SlurmClient:
        """Ping slurmctld, then connect: if slurmctld or munged is down, other commands retry for 30 s."""
        from slurm_gpu.slurm.connect import connect  # lists of runs do not use Slurm

        client = connect(self.run)
        try:
            client.ping()
        except SlurmError as error:
            if _DOWN in str(error):
                raise
            if self.config_path.exists():
                self.encode(b"slurm-gpu", self.config.munge_socket)
        return client

    def directory(self) -> SystemDirectory:
        """Return the users and groups of this host, and the accounts in slurmdbd."""
        from slurm_gpu.policy.language.names import SystemDirectory  # most commands read no policy

        return SystemDirectory(self._account_parents)

    def _account_parents(self) -> dict[str, str]:
        from slurm_gpu.slurm.client import has_slurmdbd

        settings = self.slurm.settings()
        if not has_slurmdbd(settings):
            raise OutsideError("this Slurm has no slurmdbd, which stores accounts")
        found = self.limits.associations(settings.cluster)
        return {one.account: one.parent for one in found if not one.user}

    def database(self) -> DatabaseClient:
        """Open a new connection to slurm-gpudbd; the caller closes it as a context manager."""
        return self.connect_database(self.config)


def with_site(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the CommandSite to a click command as its first argument."""
    return click.make_pass_decorator(CommandSite, ensure=True)(command)
