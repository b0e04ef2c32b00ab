"""slurm-gpuweb: the whole cluster and every job on one page, over slurm-gpudbd's read API."""
