"""Apply the part of a policy that Slurm's own limits can enforce, and remove it again."""
