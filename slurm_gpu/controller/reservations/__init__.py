"""Reservations in Slurm: planning, creating, watching and deleting them."""
