"""Choose the Slurm backend: the commands, or pyslurm if it is installed and matches this Slurm."""

from __future__ import annotations

from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.pyslurm_backend import PyslurmClient
from slurm_gpu.slurm.runner import CommandRunner, run_command


def connect(run: CommandRunner = run_command) -> SlurmClient:
    """Return a client for the Slurm that this host is configured for (SLURM_CONF or /etc/slurm/slurm.conf).

    This function does not call slurmctld; if slurmctld does not answer, the client's first call raises
    SlurmError. `run` runs the commands; callers can pass a function that also counts the calls.
    """
    commands = CommandClient(run)
    return PyslurmClient.if_usable(commands) or commands
