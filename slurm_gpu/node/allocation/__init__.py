"""Track GPU allocations: hook files, Slurm's order of GPUs, open allocations."""
