"""`slurm-gpu notices`."""
