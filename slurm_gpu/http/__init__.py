"""HTTP of slurm-gpudbd and slurm-gpuweb: the server, its limits, identity of the caller."""
