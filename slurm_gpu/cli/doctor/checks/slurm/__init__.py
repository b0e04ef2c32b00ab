"""Check Slurm's configuration and state."""
