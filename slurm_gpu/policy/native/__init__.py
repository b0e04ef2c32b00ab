"""The native backstop: what of a policy Slurm's own limits can hold, put there and taken back again."""
