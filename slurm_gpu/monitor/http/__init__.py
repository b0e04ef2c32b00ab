"""HTTP of slurm-gpuweb: the server, responses, caching, limits."""
