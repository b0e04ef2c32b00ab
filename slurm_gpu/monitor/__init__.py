"""slurm-gpuweb, and the cluster state that its pages and `slurm-gpu top` show."""
