"""Implement `slurm-gpu reserve`."""
