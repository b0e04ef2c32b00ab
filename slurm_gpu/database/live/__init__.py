"""State that slurm-gpudbd keeps in memory only: live values, arrivals, quotas, verdicts."""
