"""Predict the script's decision on a command line, as sbatch, srun or salloc would submit it."""
