"""Placement through Slurm: node weights, zones, priorities."""
