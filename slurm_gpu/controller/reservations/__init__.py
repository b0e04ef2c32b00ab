"""Reservations in Slurm: where and when they can be, made, watched, and given up."""
