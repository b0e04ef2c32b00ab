"""Keep shipments on disk until slurm-gpudbd has stored them."""
