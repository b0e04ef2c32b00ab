"""The whole cluster and every job for those who look at it: pages (slurm-gpuweb) and the terminal."""
