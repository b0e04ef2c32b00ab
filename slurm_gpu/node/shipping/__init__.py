"""Store shipments on disk until slurm-gpudbd has them."""
