"""Report audit events, decisions and quotas to slurm-gpudbd."""
