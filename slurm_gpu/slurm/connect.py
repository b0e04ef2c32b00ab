"""Which backend answers: the commands, or pyslurm where it is installed and fits this Slurm."""

from __future__ import annotations

from slurm_gpu.slurm.client import SlurmClient
from slurm_gpu.slurm.commands import CommandClient


def connect() -> SlurmClient:
    """A client of the Slurm that this host is configured for (SLURM_CONF, else /etc/slurm/slurm.conf).

    Nothing is asked of Slurm yet; the first call raises SlurmError if it does not answer.
    """
    return CommandClient()
