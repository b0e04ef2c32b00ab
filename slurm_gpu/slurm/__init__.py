"""The only room that talks to Slurm: one `SlurmClient` protocol, a command backend and a pyslurm backend."""
