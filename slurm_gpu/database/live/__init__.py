"""Keep state that is only in slurm-gpudbd's memory: live values, arrivals, quotas and verdicts."""
