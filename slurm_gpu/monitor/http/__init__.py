"""HTTP of slurm-gpuweb: responses, caching, limits for each viewer."""
