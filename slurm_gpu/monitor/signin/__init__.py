"""Sign-in to slurm-gpuweb by one-time links of `slurm-gpu web` or by a site's reverse proxy, and sessions."""
