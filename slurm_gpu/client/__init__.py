"""Provide the client of slurm-gpudbd, through which all other packages read the database."""
