"""Implement `slurm-gpu notices`."""
