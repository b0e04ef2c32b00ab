"""`slurm-gpu placement`."""
