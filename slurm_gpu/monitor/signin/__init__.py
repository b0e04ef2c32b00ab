"""Sign users in to slurm-gpuweb by one-time links or by the site's reverse proxy, and keep their sessions."""
