"""Placement of jobs through Slurm: node weights, zones, priorities."""
