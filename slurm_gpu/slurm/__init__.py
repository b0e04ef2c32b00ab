"""The only package that calls Slurm: the `SlurmClient` protocol, a command backend, a pyslurm backend."""
