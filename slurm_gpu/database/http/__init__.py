"""Handle parameters, rate limits and errors of requests to slurm-gpudbd."""
