"""Implement slurm-gpuweb, and the state of the cluster that its pages and `slurm-gpu top` show."""
