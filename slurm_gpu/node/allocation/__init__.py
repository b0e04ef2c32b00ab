"""Track GPU allocations: read hook files, determine Slurm's order of GPUs, and keep the open allocations."""
