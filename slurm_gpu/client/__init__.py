"""Client of slurm-gpudbd, through which all other parts read the database."""
