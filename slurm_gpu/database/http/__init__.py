"""Requests to slurm-gpudbd: parameters, rate limits and errors."""
