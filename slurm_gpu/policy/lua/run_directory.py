"""Name the directory that slurm-gpuctld and the script for slurmctld share."""

from pathlib import Path

RUN_DIRECTORY = Path("/run/slurm-gpu")
