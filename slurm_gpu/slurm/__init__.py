"""The only package that calls Slurm: the `SlurmClient` protocol and its backends."""
