"""Sign-in to slurm-gpuweb: sessions, one-time links of `slurm-gpu web`, a site's reverse proxy."""
