"""Store items on disk until slurm-gpudbd has stored them."""
