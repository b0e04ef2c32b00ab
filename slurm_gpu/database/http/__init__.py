"""Requests to slurm-gpudbd: identity of the caller, parameters, rate limits, errors."""
