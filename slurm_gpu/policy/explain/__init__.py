"""Predict the decision of job_submit.lua and Slurm on the command line of sbatch, srun or salloc."""
