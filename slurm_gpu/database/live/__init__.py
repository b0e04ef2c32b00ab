"""State that slurm-gpudbd keeps only in memory: live values, arrivals, quotas and verdicts."""
