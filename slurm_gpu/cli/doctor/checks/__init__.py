"""The checks of `slurm-gpu doctor`, one function each, listed in `every`."""
