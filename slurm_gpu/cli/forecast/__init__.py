"""Implement `slurm-gpu forecast`."""
