"""Choose the Slurm backend: the commands, or pyslurm if it is installed and fits this Slurm."""

from __future__ import annotations

from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import CommandClient, CommandRunner, run_command
from slurm_gpu.slurm.pyslurm_backend import PyslurmClient


def connect(run: CommandRunner = run_command) -> SlurmClient:
    """Return a client of the Slurm that this host is configured for (SLURM_CONF or /etc/slurm/slurm.conf).

    This makes no call to slurmctld; the first call raises SlurmError if it does not answer. `run` runs the
    commands; callers that count them pass their own.
    """
    commands = CommandClient(run)
    return PyslurmClient.if_usable(commands) or commands
