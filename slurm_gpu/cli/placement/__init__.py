"""Implement `slurm-gpu placement`."""
