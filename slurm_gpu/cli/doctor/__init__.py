"""Implement `slurm-gpu doctor` and its checks."""
