"""What the commands work on: the site file, Slurm and slurm-gpudbd, each opened when first needed."""

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
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import CommandRunner, run_command
from slurm_gpu.slurm.connect import connect
from slurm_gpu.slurm.sacctmgr import Sacctmgr

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient


_DOWN = " is DOWN"
"""What `scontrol ping` says; that it took too long for an answer may be due to the load here."""


def open_database(config: SiteConfig) -> DatabaseClient:
    """Return a connection to slurm-gpudbd."""
    # httpx takes longer to import than most commands take to run.
    from slurm_gpu.client.database_client import DatabaseClient

    return DatabaseClient(config)


@dataclass
class CommandSite:
    """One call of the command. Tests hand in their own Slurm, database and time."""

    config_path: Path = field(default_factory=default_path)
    connect_slurm: Callable[[], SlurmClient] | None = None
    """None: the Slurm that this host is configured for."""
    connect_database: Callable[[SiteConfig], DatabaseClient] = open_database
    wall: Callable[[], float] = time.time
    connect_limits: Callable[[], Sacctmgr] | None = None
    """None: those in slurmdbd."""
    run: CommandRunner = run_command
    """Runs Slurm's commands."""
    encode: Callable[[bytes, str | None], str] = munge.encode
    sleep: Callable[[float], None] = time.sleep

    @functools.cached_property
    def config(self) -> SiteConfig:
        """The checked site file; raises InvalidFileError with every mistake in it."""
        return load_config(self.config_path)

    @functools.cached_property
    def slurm(self) -> SlurmClient:
        """The Slurm of this host; raises SlurmError or MungeError where it is known at once not to answer."""
        return self._slurm_here() if self.connect_slurm is None else self.connect_slurm()

    @functools.cached_property
    def limits(self) -> Sacctmgr:
        """Slurm's own limits, in slurmdbd."""
        return Sacctmgr(self.run) if self.connect_limits is None else self.connect_limits()

    def _slurm_here(self) -> SlurmClient:
        """Pinged once: without slurmctld or munged every other question is tried for half a minute."""
        client = connect(self.run)
        try:
            client.ping()
        except SlurmError as error:
            if _DOWN in str(error):
                raise
            if self.config_path.exists():
                self.encode(b"slurm-gpu", self.config.munge_socket)
        return client

    def database(self) -> DatabaseClient:
        """A fresh connection to slurm-gpudbd, a context manager."""
        return self.connect_database(self.config)


def with_site(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hand a click command the Site as its first argument."""
    return click.make_pass_decorator(CommandSite, ensure=True)(command)
