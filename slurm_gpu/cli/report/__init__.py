"""Implement `slurm-gpu report`."""
