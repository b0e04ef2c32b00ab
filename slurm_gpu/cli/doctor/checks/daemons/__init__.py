"""Check the daemons of slurm-gpu, of MUNGE and of the databases."""
