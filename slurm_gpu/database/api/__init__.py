"""Endpoints for reads, and for reports from slurm-gpuctld and the commands."""
