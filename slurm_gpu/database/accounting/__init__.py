"""Import of Slurm's accounting, and its match with the records of the nodes."""
