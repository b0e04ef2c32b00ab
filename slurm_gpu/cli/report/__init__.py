"""`slurm-gpu report`."""
