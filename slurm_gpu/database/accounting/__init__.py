"""Import Slurm's accounting, and match it with the records of the nodes."""
