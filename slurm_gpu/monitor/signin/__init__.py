"""Sign-in to slurm-gpuweb: sessions, one-time links of `slurm-gpu open`, a site's reverse proxy."""
