"""Client of slurm-gpudbd, through which every other part reads the database."""
