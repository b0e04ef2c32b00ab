"""Requests to slurm-gpudbd: parameters, rate limits, errors."""
