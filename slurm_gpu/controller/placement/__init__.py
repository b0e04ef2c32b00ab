"""Control placement through Slurm: node weights, zones and priorities."""
