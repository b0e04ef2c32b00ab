"""Serve queries, and accept reports from slurm-gpuctld and the commands."""
