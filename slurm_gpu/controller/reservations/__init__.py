"""Plan, create, monitor and delete reservations in Slurm."""
