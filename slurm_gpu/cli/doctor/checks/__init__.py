"""Implement each check of `slurm-gpu doctor` as a function; `every` lists the checks."""
