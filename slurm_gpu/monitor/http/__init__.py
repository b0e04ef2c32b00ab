"""HTTP of slurm-gpuweb: responses, caching, and limits for each viewer."""
