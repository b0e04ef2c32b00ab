"""Who holds which GPUs: the hooks' files, Slurm's positions, open allocations."""
