"""Implement `slurm-gpu colocation`."""
