"""Who looks at slurm-gpuweb: sessions, one-time links of `slurm-gpu open`, and a site's own reverse proxy."""
