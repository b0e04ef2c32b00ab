"""Clients of slurm-gpudbd; every other part of slurm-gpu reads through them."""
