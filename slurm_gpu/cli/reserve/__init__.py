"""`slurm-gpu reserve`."""
