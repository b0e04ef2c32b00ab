"""What is kept on disk until slurm-gpudbd has taken it, and how it gets there."""
