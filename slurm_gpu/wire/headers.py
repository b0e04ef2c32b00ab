"""Headers of requests to slurm-gpudbd."""

# slurm-gpuweb sends it with READS_ALL, to have a request refused if its sender may not see every run in full.
READS_HEADER = "X-Slurm-Gpu-Reads"
READS_ALL = "all"
