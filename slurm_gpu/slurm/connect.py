"""Which backend answers: the commands, or pyslurm where it is installed and fits this Slurm."""

from __future__ import annotations

from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import CommandClient, CommandRunner, run_command
from slurm_gpu.slurm.pyslurm_backend import PyslurmClient


def connect(run: CommandRunner = run_command) -> SlurmClient:
    """A client of the Slurm that this host is configured for (SLURM_CONF, else /etc/slurm/slurm.conf).

    slurmctld is not asked yet; the first question raises SlurmError if it does not answer. `run` runs the
    commands, for those who count them.
    """
    commands = CommandClient(run)
    return PyslurmClient.if_usable(commands) or commands
