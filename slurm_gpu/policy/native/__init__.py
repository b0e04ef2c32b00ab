"""Apply the part of a policy that Slurm's own limits can hold, and remove it again."""
