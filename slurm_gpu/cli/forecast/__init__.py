"""`slurm-gpu forecast`."""
