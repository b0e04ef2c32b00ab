"""`slurm-gpu colocation`."""
