"""Which job holds which GPU: the hooks' files, Slurm's order of GPUs, open allocations."""
