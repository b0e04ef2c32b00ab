"""Reports to slurm-gpudbd: audit events, decisions, quotas."""
