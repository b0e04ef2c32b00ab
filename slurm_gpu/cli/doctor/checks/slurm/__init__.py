"""Checks of Slurm's configuration and state."""
